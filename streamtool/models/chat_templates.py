"""Properties of a model that its chat template reveals: the format that the model was trained on, and whether the
prompt opens reasoning.

A template writes past calls, and often explains how to write a call, so it contains the markers of the model's format.
The table lists these markers. It is read from top to bottom, and the first row whose markers all occur in the template
wins. A format whose markers are special tokens is recognized, and calls in it are then parsed, but it is not taught
(`families`).

Sources: the templates collected in llama.cpp (`models/templates`), templates in GGUF files, and Ollama's templates.
"""

from attrs import frozen

from streamtool.models.families import is_teachable
from streamtool.models.generation_prompt import open_reasoning

MAX_TEMPLATE = 256 * 1024
"""Maximum length of a template; the longest known one has 30,000 characters."""


@frozen
class Mark:
    """The markers that identify a format's templates."""

    texts: tuple[str, ...]
    """Strings that must all occur; the first one is reported as the reason."""
    format: str
    without: tuple[str, ...] = ()
    """Strings that must not occur."""


MARKS: tuple[Mark, ...] = (
    # formats with distinctive markers
    Mark(("]<]minimax[>[",), "minimax_m3"),
    Mark(("<minimax:tool_call>",), "minimax_m2"),
    Mark(("<seed:tool_call>",), "seed_oss"),
    Mark(("<longcat_tool_call>",), "longcat"),
    Mark(("<iquest_tool_call>",), "iquest"),
    Mark(("<dots_function_call>",), "dots"),
    Mark(("<atem:",), "muse"),
    Mark(("<steptml:",), "step3"),
    Mark(("｜DSML｜",), "deepseek_v32"),
    Mark(("｜GCML｜",), "gigachat35"),
    Mark(("<｜tool▁sep｜>", "```json"), "deepseek_v3"),
    Mark(("<｜tool▁sep｜>",), "deepseek_v31"),
    Mark(("<|tool_calls_section_begin|>",), "kimi_k2"),
    Mark(("<|open|>", "<|sep|>"), "kimi_k3"),
    Mark(("<|tool_call:begin|>",), "solar"),
    Mark(("<|plamo:begin_tool_request:plamo|>",), "plamo3"),
    Mark(("<ifm|tool_call>",), "k2_horizon"),
    Mark(("<|content_invoke_tool_json|>",), "inkling"),
    Mark(("<|START_ACTION|>",), "cohere"),
    Mark(("<|tools_prefix|>",), "apertus"),
    Mark(("<|tool_call>",), "gemma4"),
    Mark(("<start_function_call>",), "functiongemma"),
    Mark(("<|action_start|>",), "internlm"),
    Mark(("[TOOL_CALLS]",), "mistral"),
    Mark(("<|channel|>", "commentary"), "harmony"),
    Mark(("function call<|role_sep|>",), "gigachat3"),
    Mark(("<|function_call|>",), "gigachat3"),
    Mark(("-> tool/function_call",), "hyperclova"),
    Mark(("<|tool_call_start|>",), "lfm2"),
    Mark(("<TOOLCALL>",), "nemotron"),
    Mark(("functools[",), "phi4"),
    Mark((">>>all",), "functionary"),
    # formats that share their first marker with others
    Mark(("<tool_sep", "arg_key"), "hunyuan_v3"),
    Mark(("<arg_key>", "}\n<arg_key>"), "glm45"),
    Mark(("<arg_key>", "name\n<arg_key>"), "glm45"),
    Mark(("<arg_key>",), "glm47"),
    Mark(("<parameter=", "value_1</parameter>"), "mimo"),
    Mark(("<parameter=", "<function="), "qwen3_coder"),
    Mark(("<param name=",), "minicpm5"),
    Mark(("<invoke name=",), "invoke"),
    Mark(("<function_calls>",), "olmo3"),
    Mark(("<tool_calls>", "beginning_of_sentence"), "minimax_m1"),
    Mark(("<tool_calls>", "<|extra_0|>"), "hunyuan_a13b"),
    Mark(("```tool_code",), "tool_code"),
    Mark(("<tool_call>", "</response>"), "ernie"),
    Mark(("<tool_call>",), "tool_call", without=("<function=", "<tool_calls>")),
    Mark(("<|python_tag|>",), "llama3", without=("<function=",)),
)


@frozen
class Recognised:
    """Properties recognized in a template."""

    format: str | None = None
    """The format that the model was trained on, or None if it was not recognized."""
    mark: str = ""
    """The marker that identified the format."""
    opener: str = ""
    """The reasoning opener that the prompt leaves unclosed, or "" if none is known."""
    opener_on_request: str = ""
    """The reasoning opener that the prompt leaves unclosed if the request asks for reasoning."""
    described: bool = False
    """Whether the format is that of the model's response template."""
    calls_end_reasoning: bool = False
    """Whether the response template ends reasoning at a call."""

    @property
    def taught(self) -> str | None:
        """The model's own format if it consists of ordinary text. None if it does not, or was not recognized: then the
        family's format is taught.
        """
        return self.format if self.format is not None and is_teachable(self.format) else None


def recognise(template: str, for_tools: str = "") -> Recognised:
    """Recognize the format and the open reasoning of a template. `for_tools` is a separate template for requests with
    tools, if the model has one.
    """
    text = unescape_literals(template[:MAX_TEMPLATE] + for_tools[:MAX_TEMPLATE])
    contains = text.__contains__
    mark = next((m for m in MARKS if all(map(contains, m.texts)) and not any(map(contains, m.without))), None)
    return Recognised(
        None if mark is None else mark.format,
        "" if mark is None else mark.texts[0],
        open_reasoning(template[:MAX_TEMPLATE]),
        open_reasoning(template[:MAX_TEMPLATE], thinking=True),
    )


def unescape_literals(template: str) -> str:
    """Return the template with the escaped line breaks and quotes in its literals replaced."""
    return template.replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'")
