"""Hypothesis strategies: JSON, calls, tools, random markers, and splits of a text. Everything is derived from the
table.
"""

import itertools
import json
from typing import Any

from hypothesis import strategies as st

from statemachine import FORMATS, Call
from statemachine.formats import REASONING
from statemachine.formats.format import (
    ARGUMENT_KEYS,
    ID_KEYS,
    NAME_KEYS,
    Envelope,
    Expression,
    Format,
    MessageBody,
    Parameters,
)
from statemachine.formats.markers import spell

CHARS = st.one_of(
    st.characters(exclude_categories=("Cs",)),
    st.sampled_from("\"'\\{}[]<>/`@:,\n\r\t =-_.0aeE\u2028\u200b\x00\x1f“”"),
)
TEXTS = st.text(CHARS, max_size=20)
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "integer": st.integers(),
    "number": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers()),
    "boolean": st.booleans(),
    "null": st.none(),
}


def json_values() -> st.SearchStrategy[Any]:
    """Generate JSON values."""
    leaves = st.one_of(*TYPES.values())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
        max_leaves=8,
    )


def objects() -> st.SearchStrategy[dict[str, Any]]:
    """Generate JSON objects."""
    return st.dictionaries(TEXTS, json_values(), max_size=4)


@st.composite
def json_texts(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> str:
    """Generate strict JSON of a value, spelled in one of the ways that JSON allows."""
    text = json.dumps(
        draw(values),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, None, 1])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", "\t:\n")])),
    )
    return text.replace("/", "\\/") if draw(st.booleans()) else text


NAMES = st.from_regex(r"\A[a-z][a-z0-9_]{0,10}\Z")
KEYS = st.from_regex(r"\A[A-Za-z_][\w.-]{0,10}\Z", fullmatch=False).filter(str.isascii)


@st.composite
def json_calls(draw: st.DrawFn) -> tuple[list[Call], dict[str, Any]]:
    """Generate calls with any arguments, and their tools without schemas."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    calls = draw(st.lists(st.builds(Call, st.sampled_from(names), json_texts(objects())), min_size=1, max_size=3))
    return calls, {name: {} for name in names}


@st.composite
def typed_calls(draw: st.DrawFn, form: Format) -> tuple[list[Call], dict[str, Any]]:
    """Generate calls whose arguments match the schemas of their tools, and these tools."""
    body = next(variant.body for variant in form.variants if isinstance(variant.body, Parameters))
    tools: dict[str, Any] = {}
    calls: list[Call] = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=2, unique=True)):
        kinds = draw(st.dictionaries(KEYS, st.sampled_from([*TYPES, "object", "array"]), max_size=4))
        tools[name] = {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}
        arguments: dict[str, Any] = {}
        for key, kind in kinds.items():
            match kind:
                case "string":
                    arguments[key] = draw(TEXTS.filter(lambda text: writable(text, form, body)))
                case "object":
                    arguments[key] = draw(objects())
                case "array":
                    arguments[key] = draw(st.lists(json_values(), max_size=3))
                case _:
                    arguments[key] = draw(TYPES[kind])
        calls.append(Call(name, json.dumps(arguments, ensure_ascii=draw(st.booleans()))))
    return calls, tools


def writable(text: str, form: Format, body: Parameters) -> bool:
    """Return whether a raw value can be distinguished from its surroundings.

    Values are inherently lossy if they contain (or end in a prefix of) a closer of the value, of its call or of an
    enclosing element, or a parameter's opener; in quotes, if they contain the quote's closer; and if the newline before
    the closer is markup, when they end in an incomplete newline. This predicate excludes every value with a `<` before
    a letter of a tag; excluded values that can be read nevertheless have cases in `tests/formats`.
    """
    if body.trim and text.endswith("\r"):
        return False
    if body.quote and set(text) & set("<&"):
        return body.quote[1] not in text
    tags = (body.key, body.close, form.close, *(side for pair in (*form.wrappers, *body.wrappers) for side in pair))
    return not any(spell(tag)[:2] in text for tag in tags if tag) and not text.endswith("<")


@st.composite
def expressed_calls(draw: st.DrawFn, body: Expression) -> tuple[list[Call], dict[str, Any]]:
    """Generate calls that an expression can express directly, and their tools without schemas.

    Keys of arguments are names, and strings do not contain the quote of the format: otherwise they are written as JSON.
    """
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    keys = TEXTS if body.quote else KEYS.filter(str.isidentifier)
    values = st.dictionaries(keys, json_values(), max_size=4).filter(lambda value: carried(value, body.quote))
    calls = draw(st.lists(st.builds(Call, st.sampled_from(names), json_texts(values)), min_size=1, max_size=3))
    return calls, {name: {} for name in names}


def carried(value: Any, quote: str) -> bool:
    """Return whether no string in a value contains the quote."""
    match value:
        case str():
            return not quote or quote not in value
        case list():
            return all(carried(item, quote) for item in value)
        case dict():
            return all(carried(key, quote) and carried(item, quote) for key, item in value.items())
        case _:
            return True


def _soup() -> list[str]:
    """Return every marker of every format, every key, and text that surrounds them."""
    parts: set[str] = set()
    for form in FORMATS.values():
        parts.update(spell(opener).replace("{tool}", "typed") for opener in form.openers)
        parts.update(spell(side) for pair in form.wrappers for side in pair)
        parts.add(spell(form.close).replace("{tool}", "typed"))
        parts.update(side for span in form.sections for side in (span.open, span.close))
        parts.update(f"```{info}\n" for info in form.fence)
        for variant in form.variants:
            if variant.name_rule:
                parts.update(spell(end) for end in variant.name_rule.ends)
                parts.add(variant.name_rule.id)
            match variant.body:
                case Parameters(key=key, close=close, wrappers=wrappers, key_rule=rule, type_marks=marks, quote=quote):
                    parts.update((spell(key), spell(close).replace("{key}", "s"), *quote))
                    parts.update(spell(side) for side in (*rule.ends, *marks, *itertools.chain(*wrappers)))
                case Expression(quote=quote):
                    parts.add(quote)
                case MessageBody(openers=openers, begin=begin, ends=ends, written=header):
                    parts.update(spell(marker) for marker in (*openers, begin, *ends))
                    parts.add(header.replace("{name}", "ping"))
                case Envelope(calls=calls, thought=thought, final=final):
                    parts.update(f'"{key}": ' for key in (calls, thought, *final) if key)
                case _:
                    pass
    parts.update(side for span in REASONING for side in (span.open, span.close))
    parts.update(f'"{key}"' for key in (*NAME_KEYS, *ARGUMENT_KEYS, *ID_KEYS))
    parts.discard("")
    return sorted(parts)


MARKERS = _soup()
SOUP_TOOLS: dict[str, Any] = {
    "ping": {"type": "object", "properties": {}},
    "f": {},
    "typed": {
        "type": "object",
        "properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "o": {"type": "object"}, "x": {}},
    },
    "tool_call": {"type": "object", "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}}},
    "a.b.v1.f": {},
}
FRAGMENTS = [
    *"{}[]\",:\\'`@<>/=-#“”",
    *(
        "\n",
        "\r\n",
        "\r",
        "\n\n",
        " ",
        "\t",
        "``",
        "```",
        "```\n",
        "\n```",
        "```python\n",
        "//",
        "/*",
        "*/",
        "\ud83d",
        "😀",
    ),
    *(
        "12",
        "-",
        "0.5",
        "1e",
        "true",
        "nul",
        "None",
        "\\u12",
        "\\n",
        "text",
        "Hello there. ",
        '{"a": [1]}',
        '{"id": 7, "name": "x", "b": "',
        '{"a": {"b": [{"c": "d',
        '"}]}}',
        '": "she said "yes", or',
        '", "b": 1, ',
        "`x` ",
        "> quoted\n",
        "name",
        "arguments",
        "s",
        "i",
        "o",
        "x",
    ),
    *(
        '{"name": "ping", "arguments": {}}',
        '{"tool": "f", "arguments": {"k": "v"}}',
        '{"tool": "ping"}',
        '{"a": [1, {"b": "c"}]}',
    ),
    *(
        '{"name": "nope", "arguments": {"x": {"tool": "ping"}}}',
        '{"final": {"content": "hi"}}',
        '"{\\"k\\": 1}"',
        "}}",
        "]}",
    ),
    *(
        'name="ping">',
        'name="typed">',
        'name="s">',
        "s>",
        "i>",
        "typed>",
        "ping>",
        "ping",
        "typed",
        "f",
        "nope",
        "a.b.v1.f",
        "@f {",
        "@ping {}",
    ),
]
SOUP = st.lists(
    st.one_of(st.sampled_from(MARKERS), st.sampled_from(FRAGMENTS), st.sampled_from([*SOUP_TOOLS, "nope"])), max_size=16
)
WRITTEN_ARGUMENTS = (
    "{}",
    '{"s": "a", "i": 3}',
    '{"s": "x\\ny </parameter> \\"q\\" \\u00e9 }", "o": {"a": [1, 2.50, null, "}"]}}',
    '{"x": "12", "i": -1, "o": {}}',
    '{"s": "```\\n@f {}", "x": [true, false]}',
)


@st.composite
def broken_replies(draw: st.DrawFn) -> str:
    """Generate well-formed calls in any format, then damage them: pieces removed, inserted, repeated; prose and fences
    around.
    """
    parts: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        parts.append(
            draw(
                st.sampled_from(["", "", "Now. ", "text\n", "\r\n", "```xml\n", "```\n", "`", "<think>a</think>", "  "])
            )
        )
        name = draw(st.sampled_from([*SOUP_TOOLS, "nope", "PING", "functions.f"]))
        calls = [Call(name, draw(st.sampled_from(WRITTEN_ARGUMENTS))) for _ in range(draw(st.integers(1, 2)))]
        parts.append(written(calls, draw(st.sampled_from(sorted(FORMATS)))))
    text = "".join(parts)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 8))
        put = draw(st.one_of(st.just(""), st.sampled_from(MARKERS), st.sampled_from(FRAGMENTS)))
        text = text[:at] + put + text[at + (length if draw(st.booleans()) else 0) :]
    return text


def written(calls: list[Call], form: str) -> str:
    """Call `write`, imported late so that a broken writer fails tests and not the collection."""
    from statemachine import write

    return write(calls, form)


REPLIES = st.one_of(SOUP.map("".join), broken_replies())


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Generate options of a parser."""
    found: dict[str, Any] = {
        "unknown": draw(st.sampled_from(["text", "text", "discard"])),
        "in_fences": draw(st.sampled_from(["text", "text", "calls"])),
        "calls_in_reasoning": draw(st.sampled_from([False, False, True])),
        "names": draw(st.sampled_from(["spelling", "edit"])),
        "flattened": draw(st.sampled_from(["nest", "nest", "keep"])),
    }
    formats = draw(st.sampled_from([None, None, tuple(FORMATS), "one"]))
    found["formats"] = (draw(st.sampled_from(sorted(FORMATS))),) if formats == "one" else formats
    return found


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Split the text into pieces of any sizes."""
    places = draw(st.lists(st.integers(0, len(text)), max_size=8)) if text else []
    ends = [*sorted(places), len(text)]
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
