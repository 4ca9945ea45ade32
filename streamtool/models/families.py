"""Defaults by model name: the taught format, formats to listen for, the reasoning opener, and known quirks.

The table is small and is searched from top to bottom. The first row that matches wins, and a model of an unknown family
is taught `tool_call`. Future versions of a model are assumed to write the same format as the newest known version.
Patterns match the last part of the name, so `name` matches `org/Name-7B-Instruct-GGUF` and `name:tag`. Letter case is
ignored, `_` is treated as `-`, and a match must not be part of a longer word. Settings and model rules override these
defaults.

A family is taught its own format only if the format consists of ordinary text. A marker that is a special token of the
model's tokenizer may be stripped by the server that runs the model, so a format with such markers is recognized but not
taught.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from attrs import frozen

from statemachine import Format
from statemachine.formats import Body, Expression, MessageBody, NameRule, Parameters, find_format

Roles = Literal["strict", "free"]


@frozen
class Family:
    """The models whose names match a pattern."""

    pattern: str
    """A regular expression for the name in lower case."""
    format: str = "tool_call"
    """The format that `format = "auto"` teaches."""
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


UNKNOWN = Family("")

FAMILIES: tuple[Family, ...] = (
    # families whose own format is ordinary text
    Family(r"claude", "invoke", roles="free"),
    Family(r"qwen-?3-?coder", "qwen3_coder"),
    Family(r"qwen-?(?:3\.[5-9]|[4-9](?:\.\d)?)", "qwen3_coder", calls_in_reasoning=("qwen3_coder", "tool_call")),
    Family(r"step-?(?:3\.[5-9]|[4-9](?:\.\d)?)", "qwen3_coder"),
    Family(r"nemotron-?3", "qwen3_coder", calls_in_reasoning=("qwen3_coder",)),
    Family(r"trinity", "qwen3_coder", calls_in_reasoning=("qwen3_coder", "tool_call")),
    Family(r"nemotron-(?:nano|super|ultra)", "nemotron"),
    Family(r"mimo-?vl"),
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
    Family(r"phi-?4-mini", "phi4"),
    Family(r"xlam", "xlam"),
    Family(r"gemma-?2", "tool_code", system_role=False),
    Family(r"gemma-?3n?", "tool_code"),
    Family(r"muse-(?!\d)", "muse"),
    Family(r"functionary.*v3\.2", "functionary"),
    Family(r"ui-?tars", "ui_tars"),
    Family(r"grok", "grok", roles="free"),
    Family(r"cwm", "cwm"),
    Family(r"rwkv-?[7-9]?", "rwkv"),
    # families whose format contains special tokens, and families that use the default format
    Family(r"gpt-?[3-9]\w*|gemini", roles="free"),
    Family(r"gemma(?:$|:|-?(?:1\.1-?)?[27]b)", system_role=False),
    Family(r"solar-?open", reasoning="<|think|>"),
    Family(r"command-?(?:a|r7b)", reasoning="<|START_THINKING|>"),
    Family(r"hyperclova-?x?|hcx"),
    Family(r"qwen-?2\.5-?coder"),
    Family(r"qwen-?3-.*thinking", calls_in_reasoning=("tool_call",)),
    Family(r"plamo-?[3-9]", calls_in_reasoning=("plamo3",), reasoning="<|plamo:begin_think:plamo|>"),
    Family(r"inkling", calls_in_reasoning=("inkling",), reasoning="<|content_thinking|>"),
    Family(r"step-?audio-?2|openpangu-?2|sarashina|k-?exaone-?2|intern-?s2|flint|kolibri|reka-?edge"),
    Family(r"granite-?4(?:\.\d)?|bielik(?:-\d+b)?-?v?3"),
    Family(r"functionary", listen=("functionary",)),
    Family(r"ernie", listen=("ernie",)),
    Family(r"minimax-?m[3-9]", reasoning="<mm:think>"),
    Family(r"kimi-?k2", calls_in_reasoning=("kimi_k2",)),
    Family(r"kimi-?k[3-9]", calls_in_reasoning=("kimi_k3",), reasoning="<|open|>think<|sep|>"),
    Family(r"deepseek-?v[4-9]", calls_in_reasoning=("deepseek_v32", "deepseek_v41")),
)


@lru_cache(maxsize=256)
def family_of(model: str) -> Family:
    """Return the family that a model's name matches, or `UNKNOWN` if no row matches."""
    name = model.lower().rstrip("/").rpartition("/")[2].replace("_", "-")
    return next((family for family in FAMILIES if compile_pattern(family.pattern).search(name)), UNKNOWN)


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
