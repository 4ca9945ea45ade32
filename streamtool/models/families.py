"""Defaults by model name: the taught format, formats to listen for, the reasoning opener, and known quirks.

The table is small and is searched from top to bottom. The first row that matches wins, and a model of an unknown family
is taught `invoke`. Future versions of a model are assumed to write the same format as the newest known version.
Patterns match the last part of the name, so `name` matches `org/Name-7B-Instruct-GGUF` and `name:tag`. Letter case is
ignored, `_` is treated as `-`, and a match must not be part of a longer word. Settings and model rules override these
defaults.

A family is taught its own format only if the format consists of ordinary text. A marker that is a special token of the
model's tokenizer may be stripped by the server that runs the model, so a format with such markers is recognized but not
taught. Each row names the source of its taught format:

- `template`: the family's own format, as its chat template, or its vendor's documentation, writes it.
- `toolform`: the figures of toolform 0.0.1 (October 2026): the share of right calls among 150 requests per checkpoint,
  with 8 tools, a nested object and one turn, by what the model is asked to write: `<invoke>` with parameters (XML), a
  bare JSON object (JSON) or `f(a=1)` (Python). A measured family is taught the best of these, even if its own format is
  another one. Exceptions are GLM and Qwen 3.5, whose own formats are XML, and xLAM, whose checkpoints contradict each
  other (24.0, 39.3, 47.3; 32.0, 24.7, 7.3).

The mean of 35 checkpoints in that study is 63.0 % for XML, 54.0 % for JSON, 48.2 % for Python, and 47.5 % for
`<tool_call>` with JSON; if arguments outside the object that they belong to, which our parser moves there, count as
right in all formats, it is 63.0, 68.6, 61.8 and 58.4 %. Bare JSON is not the default, because answers may contain JSON.
`tool_code` represents Python, because it is ordinary text that is recognized anywhere in a reply.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final, Literal

from attrs import frozen

from statemachine import Format
from statemachine.formats import (
    Body,
    Expression,
    FormatError,
    MessageBody,
    NameRule,
    Parameters,
    find_format,
    is_format,
    objects_of,
)

GROUP: Final = "streamtool.families"
"""The entry points of other distributions' families."""
Roles = Literal["strict", "free"]
FormatSource = Literal["template", "toolform"]


@frozen
class Family:
    """The models whose names match a pattern."""

    pattern: str
    """A regular expression for the name in lower case."""
    format: str
    """The format that `format = "auto"` teaches."""
    source: FormatSource = "template"
    """The basis for the taught format."""
    listen: tuple[str, ...] = ()
    """Formats that are recognized for this family although they are off by default."""
    calls_in_reasoning: tuple[str, ...] = ()
    """Native formats whose markers end reasoning, because the family's models write calls inside reasoning that they
    never close. The markers of the taught format then end it too.
    """
    reasoning: str = "<think>"
    """The reasoning opener. A model's name does not reveal whether the prompt already contains the opener."""
    system_role: bool = True
    """Whether the chat template accepts a system message."""
    roles: Roles = "strict"
    """`free` means that the chat template accepts system messages anywhere, and consecutive messages of the same role.
    """


UNKNOWN = Family("", "invoke", "toolform")

FAMILIES: tuple[Family, ...] = (
    # families that are taught their own format, which is ordinary text
    Family(r"claude", "invoke", roles="free"),
    Family(r"qwen-?3-?coder", "qwen3_coder"),
    Family(r"qwen-?(?:3\.[5-9]|[4-9](?:\.\d)?)", "qwen3_coder", calls_in_reasoning=("qwen3_coder", "tool_call")),
    Family(r"step-?(?:3\.[5-9]|[4-9](?:\.\d)?)", "qwen3_coder"),
    Family(r"nemotron-?3", "qwen3_coder", calls_in_reasoning=("qwen3_coder",)),
    Family(r"trinity", "qwen3_coder", calls_in_reasoning=("qwen3_coder", "tool_call")),
    Family(r"nemotron-(?:nano|super|ultra)", "nemotron"),
    Family(r"mimo-?vl|k-?exaone(?:-?\d)?|reka-?edge|granite-?4(?:\.\d)?|bielik(?:-\d+b)?-?v?3", "tool_call"),
    Family(r"mimo", "mimo"),
    Family(r"seed-?oss", "seed_oss", reasoning="<seed:think>"),
    Family(r"minimax-?m1", "minimax_m1"),
    Family(r"minimax-?m2", "minimax_m2", calls_in_reasoning=("minimax_m2",)),
    Family(r"glm-?4\.[56]v?", "glm45", calls_in_reasoning=("glm45",)),
    Family(r"glm-?(?:4\.[7-9]|[5-9](?:\.\d)?)", "glm47", calls_in_reasoning=("glm47",)),
    Family(r"laguna", "glm47", calls_in_reasoning=("glm47",)),
    Family(r"ling-?[3-9]", "glm45", calls_in_reasoning=("glm45",)),
    Family(r"spark-?x?[3-9](?:\.\d)?", "glm47"),
    Family(r"telechat-?[4-9]", "telechat"),
    Family(r"iquest-?q1", "iquest"),
    Family(r"iquest-?coder-?v?[2-9]", "iquest_coder"),
    Family(r"hunyuan-?a13b", "hunyuan_a13b"),
    Family(r"hunyuan-?v?[3-9]|hy-?[3-9]", "hunyuan_v3", calls_in_reasoning=("hunyuan_v3",)),
    Family(r"longcat", "longcat", reasoning="<longcat_think>"),
    Family(r"dots\.?v?llm\d?", "dots"),
    Family(r"minicpm-?[5-9]", "minicpm5"),
    Family(r"olmo-?3", "olmo3"),
    Family(r"xlam", "xlam"),
    Family(r"gemma-?2", "tool_code", system_role=False),
    Family(r"muse-(?!\d)", "muse"),
    Family(r"functionary.*v3\.2", "functionary"),
    Family(r"ui-?tars", "ui_tars"),
    Family(r"grok", "grok", roles="free"),
    Family(r"cwm", "cwm"),
    Family(r"rwkv-?[7-9]?", "rwkv"),
    Family(r"ernie", "tool_call", listen=("ernie",)),
    # measured families, and single models that differ: % right in XML, JSON, Python
    Family(r"gpt-oss", "tool_code", "toolform"),  # 42.7, 59.7, 75.0; gpt-oss-20b alone: 13.3, 43.3, 72.0
    Family(r"watt-tool", "tool_code", "toolform"),  # 2.0, 18.0, 59.3
    Family(r"gemma-?3[-:]?1b", "tool_code", "toolform"),  # 2.0, 4.7, 12.7
    Family(r"gemma-?3n?|gemma-?4", "invoke", "toolform"),  # 54.7, 47.2, 50.5; Gemma 4: 83.7, 81.7, 72.9
    Family(r"deepseek-?r1-?distill", "invoke", "toolform"),  # 72.7, 50.7, 68.7
    Family(r"hermes", "invoke", "toolform"),  # 86.7, 40.7, 44.0
    Family(r"qwen-?2\.5", "invoke", "toolform"),  # 73.7, 43.0, 44.4; Qwen2.5-Coder: 81.3, 42.0, 56.7
    Family(r"qwen-?3-.*thinking", "invoke", "toolform", calls_in_reasoning=("tool_call",)),
    Family(r"qwen-?3", "invoke", "toolform"),  # 77.7, 57.3, 48.4
    Family(r"llama-?3(?:[.-]\d)?", "invoke", "toolform"),  # 62.8, 41.3, 60.8
    Family(r"mi(?:ni)?stral", "invoke", "toolform"),  # 85.1, 62.9, 60.9
    Family(r"phi-?4", "invoke", "toolform"),  # 75.0, 50.3, 62.7; Phi-4-mini: 64.7, 31.3, 43.3
    Family(r"smollm\d?", "invoke", "toolform"),  # 26.9, 15.8, 18.9
    Family(r"gpt-?[3-9]\w*", "invoke", "toolform", roles="free"),  # GPT-5.6 and GPT-6: 91.0, 90.0, 90.3
    # families that are taught the default format, because their own contains special tokens or is unknown
    Family(r"gemini", "invoke", "toolform", roles="free"),
    Family(r"gemma(?:$|:|-?(?:1\.1-?)?[27]b)", "invoke", "toolform", system_role=False),
    Family(r"hyperclova-?x?|hcx|step-?audio-?2|openpangu-?2|sarashina|intern-?s2|flint|kolibri", "invoke", "toolform"),
    Family(r"solar-?open", "invoke", "toolform", reasoning="<|think|>"),
    Family(r"command-?(?:a|r7b)", "invoke", "toolform", reasoning="<|START_THINKING|>"),
    Family(
        r"plamo-?[3-9]",
        "invoke",
        "toolform",
        calls_in_reasoning=("plamo3",),
        reasoning="<|plamo:begin_think:plamo|>",
    ),
    Family(r"inkling", "invoke", "toolform", calls_in_reasoning=("inkling",), reasoning="<|content_thinking|>"),
    Family(r"functionary", "invoke", "toolform", listen=("functionary",)),
    Family(r"minimax-?m[3-9]", "invoke", "toolform", reasoning="<mm:think>"),
    Family(r"kimi-?k2", "invoke", "toolform", calls_in_reasoning=("kimi_k2",)),
    Family(r"kimi-?k[3-9]", "invoke", "toolform", calls_in_reasoning=("kimi_k3",), reasoning="<|open|>think<|sep|>"),
    Family(r"deepseek-?v[4-9]", "invoke", "toolform", calls_in_reasoning=("deepseek_v32", "deepseek_v41")),
)


@lru_cache(maxsize=256)
def family_of(model: str) -> Family:
    """Return the family that a model's name matches, or `UNKNOWN` if no row matches."""
    name = model.lower().rstrip("/").rpartition("/")[2].replace("_", "-")
    rows = (*plugged_families(), *FAMILIES)
    return next((family for family in rows if compile_pattern(family.pattern).search(name)), UNKNOWN)


@cache
def plugged_families() -> tuple[Family, ...]:
    """Return the families that other distributions register. They precede ours. Raises FormatError."""
    found = objects_of(GROUP, Family)
    for family in found:
        for name in (family.format, *family.listen):
            if not is_format(name):
                raise FormatError(f"the family {family.pattern!r} ({GROUP}) names an unknown format: {name!r}")
    return found


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> "re.Pattern[str]":
    """Compile the pattern so that a match neither adjoins another letter nor ends between two digits."""
    return re.compile(rf"(?<![a-z])(?:{pattern})(?!(?<=[a-z\d])[a-z])(?!(?<=\d)\d)")


# --- special tokens --------------------------------------------------------------------------------------------------

CONTROL = re.compile(r"[|｜]|[<\]]\]|\]<|\[[A-Z][A-Z_]*\]")
"""Matches syntax that only occurs in control tokens: `<|…|>`, `<｜…｜>`, `]<]…[>[`, `[TOOL_CALLS]`."""

TOKEN = re.compile(r"<[^<>\s]*[|｜][^<>\s]*>")
"""Matches a single control token in a marker that contains several."""

PLAIN = ("[TOOL_CALL]", "[TOOL_REQUEST]", "[END_TOOL_REQUEST]")
"""Markers that look like control tokens but are ordinary text: no model that writes them has such a token."""

REGISTERED = ("<start_function_call>", "<end_function_call>", "<escape>")
"""Tokens that look like ordinary tags but are special tokens in every model that writes them."""


def special_tokens(form: Format) -> tuple[str, ...]:
    """Return the special tokens that the format itself writes in a call, or () if it writes only ordinary text."""
    pieces = [
        piece for marker in written_markers(form) for piece in re.split(r"\{(?:\*|word)\}", marker) if is_special(piece)
    ]
    return tuple(dict.fromkeys(token for piece in pieces for token in (TOKEN.findall(piece) or [piece])))


def is_special(marker: str) -> bool:
    """Return whether a marker is a control token: it looks like one and is not a known exception, or is listed in
    `REGISTERED`.
    """
    return (CONTROL.search(marker) is not None or any(token in marker for token in REGISTERED)) and marker not in PLAIN


def written_markers(form: Format) -> Iterator[str]:
    """Yield the markers that the format itself writes in a call, using its first variant and opener."""
    variant = form.variants[0]
    yield from (around for around in (form.around, form.around_each) if around)
    yield from form.openers[:1]
    yield from body_markers(variant.body)
    if variant.name_rule is not None:
        yield from name_rule_markers(variant.name_rule)
    if form.close:
        yield form.close


def body_markers(body: Body) -> Iterator[str]:
    """Yield the markers of a body."""
    match body:
        case Parameters():
            yield body.key
            yield from name_rule_markers(body.key_rule)
            yield from (*body.type_marks, body.close)
        case Expression():
            yield body.quote
        case MessageBody():
            yield from (body.written, body.begin, *body.ends[:1])
        case _:
            pass


def name_rule_markers(head: NameRule) -> Iterator[str]:
    """Yield the marker that the format writes after a name or a key."""
    yield from head.ends[:1]


def is_teachable(name: str) -> bool:
    """Return whether all text that a model has to write in this format is ordinary text, without special tokens."""
    return not special_tokens(find_format(name))
