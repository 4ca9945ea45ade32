"""Recognition of chat templates: the format the model was trained on, and reasoning that the prompt opens.

The fragments condense the templates of a family; no complete template is included.
"""

import time
from pathlib import Path

import pytest
from support.sweeps import each

from statemachine import FORMATS, write
from statemachine.call import Call
from streamtool.models.chat_templates import MARKS, MAX_TEMPLATE, recognise
from streamtool.models.families import is_teachable
from streamtool.models.generation_prompt import OPENERS, open_reasoning

CASES = {
    "Hermes": (r"{{ '<tool_call>\n{\"name\": ' + call.name }}", "tool_call", None),
    "Qwen3-Coder": (r"{{ '<tool_call>\n<function=' + name + '>\n<parameter=' + key + '>\n' }}", "qwen3_coder", None),
    "MiMo": (r"<function=f>\n<parameter=example>value_1</parameter>\n</function>", "mimo", None),
    "Seed": ("{% set begin = '<seed:tool_call>' %}<function=f>\n<parameter=p>", "seed_oss", None),
    "GLM 4.5": (r"<tool_call>{function-name}\n<arg_key>{arg-key}</arg_key>", "glm45", None),
    "GLM 4.7": ("<tool_call>{function-name}<arg_key>{arg-key}</arg_key>", "glm47", None),
    "Laguna": (r"<tool_call>function-name\n<arg_key>argument-key</arg_key>", "glm45", None),
    "Hunyuan 3": ("{% set sep = '<tool_sep:x>' %}{{ '<arg_key{}>' }}", "hunyuan_v3", None),
    "Hunyuan A13B": ("'<|extra_0|>' <tool_calls>[{}]</tool_calls>", "hunyuan_a13b", None),
    "MiniMax M1": ("<beginning_of_sentence>ai <tool_calls>", "minimax_m1", None),
    "MiniMax M2": ("<minimax:tool_call>\n<invoke name=", "minimax_m2", None),
    "MiniMax M3": ("{% set ns = ']<]minimax[>[' %}<invoke name=", "minimax_m3", ""),
    "Claude": ('<function_calls>\n<invoke name="f">', "invoke", None),
    "OLMo 3": ("<function_calls>\nf(a=1)\n</function_calls>", "olmo3", None),
    "dots": ("<dots_function_call>\n<invoke name=", "dots", None),
    "MiniCPM 5": ('<function name="f"><param name="a">', "minicpm5", None),
    "Nemotron Nano": ("<TOOLCALL>[", "nemotron", None),
    "Phi-4 mini": ("functools[", "phi4", None),
    "LongCat": ("<longcat_tool_call>", "longcat", None),
    "IQuest": ("<iquest_tool_call>", "iquest", None),
    "Muse": ("<atem:invoke", "muse", None),
    "Functionary 3.2": (">>>all\nHi", "functionary", None),
    "Gemma 3": ("```tool_code\nf()\n```", "tool_code", None),
    "ERNIE": ("<tool_call>\n{}</tool_call>\n<response>\nHi</response>", "ernie", None),
    "DeepSeek V3": ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json", "deepseek_v3", ""),
    "DeepSeek V3.1": ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "deepseek_v31", ""),
    "DeepSeek V3.2": ("{% set token = '｜DSML｜' %}<invoke name=", "deepseek_v32", ""),
    "GigaChat 3.5": ("<｜GCML｜invoke name=", "gigachat35", ""),
    "GigaChat 3": ("function call<|role_sep|>\n", "gigachat3", ""),
    "GigaChat 3.1": ("<|function_call|>{", "gigachat3", ""),
    "Kimi K2": ("<|tool_calls_section_begin|>", "kimi_k2", ""),
    "Kimi K3": ("'<|open|>' + tag + '<|sep|>'", "kimi_k3", ""),
    "Solar Open": ("<|tool_call:begin|>", "solar", ""),
    "Command": ("<|START_ACTION|>", "cohere", ""),
    "Apertus": ("<|tools_prefix|>[", "apertus", ""),
    "Gemma 4": ("<|tool_call>call:f{", "gemma4", ""),
    "FunctionGemma": ("<start_function_call>call:", "functiongemma", ""),
    "InternLM": ("<|action_start|><|plugin|>", "internlm", ""),
    "Mistral": ("[TOOL_CALLS][{", "mistral", ""),
    "gpt-oss": ("<|channel|>commentary to=functions.f", "harmony", ""),
    "HyperCLOVA X": ("<|im_start|>assistant -> tool/function_call\n[", "hyperclova", ""),
    "LFM2": ("<|tool_call_start|>[f()]", "lfm2", ""),
    "PLaMo 3": ("<|plamo:begin_tool_request:plamo|>", "plamo3", ""),
    "K2 Horizon": ("<ifm|tool_call>", "k2_horizon", ""),
    "Inkling": ("<|content_invoke_tool_json|>", "inkling", ""),
    "Step 3": ("<steptml:invoke", "step3", ""),
    "Llama 3": ("<|python_tag|>f.call(", "llama3", ""),
    "Functionary 3.1": ('<|python_tag|> <function=f>{"a": 1}</function>', None, None),
    "no tools": ("<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>", None, None),
    "empty": ("", None, None),
}
"""Family → fragment of its template, its format, the format to teach (None: the same; "": that of the family)."""


@each("name", CASES)
def test_a_format_is_recognised_by_markers_in_its_templates(name: str):
    template, format_, taught = CASES[name]
    found = recognise(template)
    assert found.format == format_
    assert found.taught == ((format_ if taught is None else taught) or None)


def test_each_row_matches_a_case_and_names_a_format():
    met = {(found.format, found.mark) for found in (recognise(template) for template, _, _ in CASES.values())}
    for mark in MARKS:
        assert mark.format in FORMATS
        assert (mark.format, mark.texts[0]) in met, mark


def test_the_markers_of_one_format_do_not_match_another():
    """A template contains the format's markup; where the row requires more, it is not recognised at all."""
    same = {"mimo": "qwen3_coder", "ernie": "tool_call", "solar": "solar"}
    for name in {mark.format for mark in MARKS}:
        found = recognise(write([Call("f", '{"a": "x"}')], name)).format
        assert found in (name, same.get(name), None) or (name, found) == ("glm45", "glm47"), (name, found)


def test_special_tokens_are_recognised_but_not_taught():
    for mark in MARKS:
        taught = recognise(" ".join(mark.texts)).taught
        assert taught is None or is_teachable(taught)


def test_the_tool_template_determines_the_format_and_the_other_one_the_reasoning():
    found = recognise(END.format("<think>\\n"), "<minimax:tool_call>")
    assert (found.format, found.opener) == ("minimax_m2", "<think>")


def test_a_template_over_the_limit_is_read_only_in_part():
    assert recognise("x" * MAX_TEMPLATE + "<minimax:tool_call>").format is None


# --- the end of the prompt -------------------------------------------------------------------------------------------

END = "{{% for m in messages %}}{{{{ m }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ 'assistant\\n{}' }}}}{{% endif %}}"


def ending(text: str, before: str = "") -> str:
    return (
        f"{before}{{%- for m in messages %}}<think>{{%- endfor %}}{{%- if add_generation_prompt %}}{text}{{%- endif %}}"
    )


SWITCH = "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{%- else %}<think>\n{%- endif %}"
ON = "{%- if enable_thinking is defined and enable_thinking %}{{- '<think>' }}{%- endif %}"
BARE = "{%- if enable_thinking %}{{- '<think>\\n' }}{%- else %}{{- '<think></think>' }}{%- endif %}"
INLINE = "<|assistant|>{{- '</think>' if (enable_thinking is defined and not enable_thinking) else '<think>' -}}"
GRADED = (
    "{% if effort is defined and effort == 'low' %}{{ '<think>' }}"
    "{% elif effort is defined %}{{ '</think>' }}{% else %}{{ 'go' }}{% endif %}"
)
TRUE = "{%- set enable_thinking = enable_thinking if enable_thinking is defined else True %}"
FALSE = "{%- if not enable_thinking is defined %}{%- set enable_thinking = false %}{%- endif %}"
DEFAULT = "{%- set enable_thinking = enable_thinking | default(true) %}"
TOKEN = "{%- set begin = '<mm:think>' %}"

ENDS = {
    "always": (ending("{{- 'assistant\\n<think>\\n' }}"), "<think>", "<think>"),
    "as plain text": (ending("assistant\n<think>\n"), "<think>", "<think>"),
    "never": (ending("{{- 'assistant\\n' }}"), "", ""),
    "closed at once": (ending("{{- 'assistant\\n<think></think>' }}"), "", ""),
    "unless it is switched off": (ending(SWITCH), "<think>", "<think>"),
    "in one expression": (ending(INLINE), "<think>", "<think>"),
    "if it is switched on": (ending(ON), "", "<think>"),
    "by a variable that is not set": (ending(BARE), "", "<think>"),
    "by a variable that is true": (ending(BARE, TRUE), "<think>", "<think>"),
    "by a variable that is true by default": (ending(BARE, DEFAULT), "<think>", "<think>"),
    "by a variable that is false": (ending(BARE, FALSE), "", "<think>"),
    "by a negation": (ending("{% if not thinking %}</think>{% else %}<think>{% endif %}"), "", "<think>"),
    "by an effort": (ending(GRADED), "", ""),
    "by a token of its own": (ending("{{- begin }}", TOKEN), "<mm:think>", "<mm:think>"),
    "joined": (ending("{{- bos ~ 'ai' ~ '\\n' ~ '<think>' ~ '\\n' }}"), "<think>", "<think>"),
    "by what nobody knows": (ending("{% if moon is full %}<think>{% endif %}"), "", ""),
    "in a loop": (ending("{% for x in y %}<think>{% endfor %}"), "", ""),
    "behind a result": (
        "{%- set ns = namespace(is_tool=false) %}{% if add_generation_prompt and not ns.is_tool %}<think>\n{% endif %}",
        "<think>",
        "<think>",
    ),
    "behind the last message": (
        "{% if loop.last and add_generation_prompt and message['role'] != 'assistant' %}<think>{% endif %}",
        "<think>",
        "<think>",
    ),
    "behind a message of the user": (
        "{% if add_generation_prompt and message['role'] != 'assistant' %}<think>{% endif %}", "<think>", "<think>"
    ),
    "by a macro": (
        ending("{{ open_tag('think' if thinking else 'response') }}"), "<|open|>think<|sep|>", "<|open|>think<|sep|>"
    ),
    "no place for it": ("{% for m in messages %}<think>{% endfor %}", "", ""),
    "only before the end": (ending("assistant") + "<think>", "", ""),
    "Go, always": ("{{ if .Prompt }}user{{ end }}<|im_start|>assistant\n<think>\n{{ end }}", "<think>", "<think>"),
    "Go, never": ("{{ if .Prompt }}<think>{{ end }}<|im_start|>assistant\n", "", ""),
    "Go, and Ollama parses it": ("{{ if .Think }}x{{ end }}<|im_start|>assistant\n<think>", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_reasoning_left_open_by_the_prompt(name: str):
    template, by_default, on_request = ENDS[name]
    assert open_reasoning(template) == by_default
    assert open_reasoning(template, thinking=True) == on_request
    assert open_reasoning(template, thinking=False) == ""


def test_every_known_reasoning_opener_is_recognised():
    assert {"<think>", "<thinking>", "<seed:think>", "<|START_THINKING|>", "[THINK]", "<|think|>"} <= set(OPENERS)
    for opener in OPENERS:
        assert open_reasoning(ending(opener)) == opener


@pytest.mark.parametrize(
    "template",
    [
        "{%", "{% if", "{{", "add_generation_prompt", "{% if add_generation_prompt", "{% if add_generation_prompt %}{% else",
        "{% if add_generation_prompt %}{% endif %}{% endif %}", "{% if add_generation_prompt %}{% if  %}<think>",
        "{% set x = %}{% if add_generation_prompt %}{{ x }}",
        "{% if add_generation_prompt %}" + "{% if not " * 500, "{% set a = " + " " * 200_000,
        "{{ end }}" * 20_000 + "x", "(" * 100_000, "{% if add_generation_prompt %}{{ " + "a if b else " * 300,
    ],
)  # fmt: skip
def test_an_invalid_template_yields_nothing_quickly(template: str):
    assert recognise(template).opener == ""


def test_a_template_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is text from an upstream."""

    def compiled(*_: object) -> None:
        raise AssertionError("the template was compiled")

    monkeypatch.setattr("jinja2.Environment.compile", compiled)
    made = tmp_path / "made"
    run = "{{ cycler.__init__.__globals__.os.system('touch " + str(made) + "') }}"
    endless = "{% for i in range(10 ** 12) %}{{ i }}{% endfor %}"
    began = time.process_time()
    for template in (run, ending(run), ending(endless), f"{endless}{run}<tool_call>"):
        recognise(template, template)
        open_reasoning(template, thinking=True)
    assert recognise(f"{endless}{run}<tool_call>").format == "tool_call"
    assert not made.exists()
    assert time.process_time() - began < 1
