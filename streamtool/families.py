"""What a model's name tells: which format it is taught, what else it may write, what opens its reasoning, a bad habit.

A small table, read from top to bottom; the first row that matches counts, and a model of no known family is taught
`tool_call`. A version that is yet to come is taken to write what the newest known one does. Patterns look at the last
part of the name (`org/Name-7B-Instruct-GGUF` and `name:tag` are found by `name`), whatever its letter case; `_` is `-`
to them, and a pattern stands between letters of other words on neither side. Everything here is a default that settings
and rules overrule.

A family is taught its own format only if what the model then has to write is ordinary text. A marker that is a special
token of the model's tokenizer may be stripped by the server that runs it, so it is listened for, but not taught.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from attrs import frozen

from statemachine import FORMATS, Format
from statemachine.formats import Body, Expression, MessageBody, NameRule, Parameters

Roles = Literal["strict", "free"]


@frozen
class Family:
    """Models whose names match a pattern."""

    pattern: str
    """A regular expression over the name in small letters."""
    format: str = "tool_call"
    """What `format = "auto"` teaches."""
    listen: tuple[str, ...] = ()
    """Formats that are listened for although they are off by default."""
    calls_in_reasoning: bool = False
    """Known to write calls inside of reasoning that is never closed."""
    reasoning: str = "<think>"
    """What opens its reasoning. Whether the prompt has written that, a name does not tell."""
    system_role: bool = True
    """Its chat template takes a system message."""
    roles: Roles = "strict"
    """`free`: it takes system messages anywhere, and several messages of one role in a row."""


UNKNOWN = Family("")

FAMILIES: tuple[Family, ...] = (
    # what they write is text
    Family(r"claude", "invoke", roles="free"),
    Family(r"qwen-?3-?coder", "qwen3_coder"),
    Family(r"qwen-?(?:3\.[5-9]|[4-9](?:\.\d)?)", "qwen3_coder", calls_in_reasoning=True),
    Family(r"step-?(?:3\.[5-9]|[4-9](?:\.\d)?)", "qwen3_coder"),
    Family(r"nemotron-?3", "qwen3_coder"),
    Family(r"nemotron-(?:nano|super|ultra)", "nemotron"),
    Family(r"mimo", "mimo"),
    Family(r"seed-?oss", "seed_oss", reasoning="<seed:think>"),
    Family(r"minimax-?m1", "minimax_m1"),
    Family(r"minimax-?m2", "minimax_m2", calls_in_reasoning=True),
    Family(r"glm-?4\.[56]v?", "glm45"),
    Family(r"glm-?(?:4\.[7-9]|[5-9](?:\.\d)?)", "glm47"),
    Family(r"ling-?[3-9]", "glm45", calls_in_reasoning=True),
    Family(r"iquest-?q1", "iquest"),
    Family(r"hunyuan-?a13b", "hunyuan_a13b"),
    Family(r"hunyuan-?v?[3-9]|hy-?[3-9]", "hunyuan_v3"),
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
    # it is special tokens, or what everybody is taught
    Family(r"gpt-?[3-9]\w*|gemini", roles="free"),
    Family(r"gemma(?:$|:|-?(?:1\.1-?)?[27]b)", system_role=False),
    Family(r"solar-?open", reasoning="<|think|>"),
    Family(r"command-?(?:a|r7b)", reasoning="<|START_THINKING|>"),
    Family(r"hyperclova-?x?|hcx"),
    Family(r"qwen-?2\.5-?coder"),
    Family(r"functionary", listen=("functionary",)),
    Family(r"ernie", listen=("ernie",)),
    Family(r"minimax-?m[3-9]", reasoning="<mm:think>"),
    Family(r"kimi-?k2", calls_in_reasoning=True),
    Family(r"kimi-?k[3-9]", calls_in_reasoning=True, reasoning="<|open|>think<|sep|>"),
    Family(r"deepseek-?v[4-9]", calls_in_reasoning=True),
)


@lru_cache(maxsize=256)
def family_of(model: str) -> Family:
    """The family of a model, by its name; `UNKNOWN` if it belongs to none."""
    name = model.lower().rstrip("/").rpartition("/")[2].replace("_", "-")
    return next((family for family in FAMILIES if matcher(family.pattern).search(name)), UNKNOWN)


@lru_cache(maxsize=256)
def matcher(pattern: str) -> "re.Pattern[str]":
    """The pattern where no letter stands before it, and none behind it, nor a digit behind a digit."""
    return re.compile(rf"(?<![a-z])(?:{pattern})(?!(?<=[a-z\d])[a-z])(?!(?<=\d)\d)")


# --- special tokens --------------------------------------------------------------------------------------------------

CONTROL = re.compile(r"[|｜]|[<\]]\]|\]<|\[[A-Z][A-Z_]*\]")
"""What only control tokens look like: `<|…|>`, `<｜…｜>`, `]<]…[>[`, `[TOOL_CALLS]`."""

TOKEN = re.compile(r"<[^<>\s]*[|｜][^<>\s]*>")
"""One of them, where several stand in a marker."""

PLAIN = ("[TOOL_CALL]",)
"""Words that look like control tokens, and are ordinary text: MiniMax M2 has no such token."""

REGISTERED = ("<start_function_call>", "<end_function_call>", "<escape>")
"""Tokens that look like ordinary tags, and are special ones for every model that writes them."""


def special_tokens(form: Format) -> tuple[str, ...]:
    """The special tokens with which a format itself writes a call; () if all of it is ordinary text."""
    pieces = [
        piece for marker in written_markers(form) for piece in re.split(r"\{(?:\*|word)\}", marker) if is_special(piece)
    ]
    return tuple(dict.fromkeys(token for piece in pieces for token in (TOKEN.findall(piece) or [piece])))


def is_special(marker: str) -> bool:
    """True if a marker looks like a control token and is none of the known exceptions, or is known to be one."""
    return (CONTROL.search(marker) is not None or any(token in marker for token in REGISTERED)) and marker not in PLAIN


def written_markers(form: Format) -> Iterator[str]:
    """The markers with which the format itself writes a call: of its first variant and opener, and of its wrappers."""
    variant = form.variants[0]
    yield from (around for around in (form.around, form.around_each) if around)
    yield from form.openers[:1]
    yield from body_markers(variant.body)
    if variant.name_rule is not None:
        yield from head_markers(variant.name_rule)
    if form.close:
        yield form.close


def body_markers(body: Body) -> Iterator[str]:
    """The markers of a body."""
    match body:
        case Parameters():
            yield body.key
            yield from head_markers(body.key_rule)
            yield from (*body.type_marks, body.close)
        case Expression():
            yield body.quote
        case MessageBody():
            yield from (body.written, body.begin, *body.ends[:1])
        case _:
            pass


def head_markers(head: NameRule) -> Iterator[str]:
    """The marker with which a head is written."""
    yield from head.ends[:1]


def teachable(name: str) -> bool:
    """True if all that a model has to write in a format is ordinary text."""
    return not special_tokens(FORMATS[name])
