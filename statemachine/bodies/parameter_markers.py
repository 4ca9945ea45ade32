"""What a declaration of marked parameters compiles into: its markers, the runs of its values, and what ends a key.

Where a closer repeats its key (`</{key}>`), the markers know only how such a closer begins; which key it closes is read
where one stands (`closing`). Keys come from the model, so nothing is compiled for one unless its tool's schema
declares it: then the run of its value passes over every other tag (`own_run`).
"""

import re
from collections.abc import Callable, Generator
from enum import Enum
from functools import lru_cache
from re import Match

from attrs import frozen

from statemachine import schema
from statemachine.buffer import Ended, Mismatch
from statemachine.formats.format import Parameters
from statemachine.formats.markers import Markers, flowing_run
from statemachine.machine import Machine
from statemachine.runs import Run, quote

KEY_HOLD = 300
"""Characters of a key and its attributes, at most."""

tag_text = re.compile(rf"[^<>\r\n]{{0,{KEY_HOLD}}}+").match
type_text = re.compile(r"[\w. -]{0,64}+").match
attribute = re.compile(
    r"[ \t]*+([\w.:-]{1,64})[ \t]*+=[ \t]*+"
    r"(?:\"([^\"<>]{0,256})\"|'([^'<>]{0,256})'|([^\s\"'<>=/]{1,256}))"
)
plain_key = re.compile(r"[\"']?([^\"'<>]{1,256}?)[\"']?").fullmatch
WORD = rf"[A-Za-z_][^\s\"'<>/={{}}]{{0,{KEY_HOLD}}}+"
QUOTES = ('"', "'")
one_word = re.compile(WORD).fullmatch
"""A key that its closer repeats."""

TYPES = {
    "true": schema.STRING,
    "string": schema.STRING,
    "str": schema.STRING,
    "false": schema.ANY - schema.STRING,
    "integer": frozenset({"integer"}),
    "int": frozenset({"integer"}),
    "number": frozenset({"number", "integer"}),
    "float": frozenset({"number", "integer"}),
    "boolean": frozenset({"boolean"}),
    "bool": frozenset({"boolean"}),
    "object": frozenset({"object"}),
    "dict": frozenset({"object"}),
    "array": frozenset({"array"}),
    "list": frozenset({"array"}),
    "null": frozenset({"null"}),
}
"""What a value may be that is marked so; any other mark says nothing."""


class Marker(Enum):
    """What a marker inside of a call is."""

    CALL = "the opener of a call"
    KEY = "a key opener"
    VALUE_END = "the value's closer"
    CALL_END = "the call's closer"
    OPEN = "the opener of a wrapper around parameters"
    CLOSE = "the closer of a wrapper around parameters"


@frozen(eq=False)
class Inside:
    """What may end a raw value, and the run of its text."""

    markers: Markers[Marker]
    run: Run


@frozen(eq=False)
class Tables:
    """What a declaration compiles into."""

    body: Parameters
    openers: tuple[str, ...]
    """What opens a call."""
    close: str
    """The call's closer."""
    keyed: bool
    """The closer of a value repeats its key."""
    between: Markers[Marker]
    """Between values."""
    inner: Markers[Marker]
    """Those of them behind which the call goes on."""
    plain: Inside
    """Inside of a raw value."""
    trimmed: Inside
    """Inside of one that begins on a line of its own: the line end before its closer is markup too."""
    ends: Markers[bool]
    """What ends a key; true: its type follows."""
    type_ends: Markers[bool] | None
    closing: Callable[[str, int], Match[str] | None]
    """The closer of a key, the line end before it included: the key in group 1, group 2 if it is whole."""
    quote_open: Markers[Marker] | None
    quoted: Inside | None
    """Inside of the quotes that may stand around a value."""


@lru_cache(maxsize=256)
def tables(body: Parameters, openers: tuple[str, ...], close: str) -> Tables:
    """The markers of a declaration in a call with these openers and this closer."""
    before, keyed, after = body.close.partition("{key}")
    ends = [(close, Marker.CALL_END)] if close else []
    ends += [(body.key, Marker.KEY), (f"{before}{{a}}" if keyed else body.close, Marker.VALUE_END)]
    for other_key, other_close in body.other_keys:
        ends += [(other_key, Marker.KEY), (other_close, Marker.VALUE_END)]
    ends = list(dict(ends).items())
    around = [
        (text, mark) for pair in body.wrappers for text, mark in zip(pair, (Marker.OPEN, Marker.CLOSE), strict=True)
    ]
    openers = tuple(opener for opener in openers if not opener[0].isalpha())  # such a one stands in a wrapper only
    within = [*((opener, Marker.CALL) for opener in openers), *ends]
    plain = inside(within, trimmed=False)
    closing = rf"(?:\r?\n)?+{re.escape(before)}({WORD})(?:\Z|{Markers([(after, True)]).expression()})"
    return Tables(
        body,
        openers,
        close,
        bool(keyed),
        Markers(dict(ends + around).items()),
        Markers([(text, mark) for text, mark in dict(ends + around).items() if mark is not Marker.CALL_END]),
        plain,
        inside(within, trimmed=True) if body.trim else plain,
        Markers([*((end, False) for end in body.key_rule.ends), *((mark, True) for mark in body.type_marks[:1])]),
        Markers([(body.type_marks[1], False)]) if body.type_marks else None,
        re.compile(closing if keyed else "(?!)").match,
        Markers([(body.quote[0], Marker.OPEN)]) if body.quote else None,
        inside([(body.quote[0], Marker.OPEN), (body.quote[1], Marker.VALUE_END)], trimmed=False)
        if body.quote
        else None,
    )


def inside(ends: list[tuple[str, Marker]], *, trimmed: bool) -> Inside:
    """What these markers make of the inside of a raw value."""
    openers = ("", "\n", "\r\n") if trimmed else ("",)
    markers = Markers([(lead + text, mark) for text, mark in ends for lead in openers])
    return Inside(markers, flowing_run(Markers(ends), convert=quote, trim=trimmed))


@lru_cache(maxsize=256)
def own_run(table: Tables, key: str, names: tuple[str, ...], *, trimmed: bool) -> Run:
    """The run of the value of one of the declared parameters, where its closer repeats the key.

    It stops only at what may end this value; other tags flow.
    """
    opener = table.body.key.removesuffix("{a}")
    ends = [table.body.close.replace("{key}", key), *([table.close] if table.close else [])]
    stops: list[str] = []
    for text in sorted([*ends, *table.openers, *(opener + name for name in names if one_word(name))]):
        if not (stops and text.startswith(stops[-1])):
            stops.append(text)
    return flowing_run(Markers((text, True) for text in stops), convert=quote, trim=trimmed)


# ---- looking ahead: offsets are counted from what is consumed, so that they survive a wait


def look(machine: Machine, markers: Markers[Marker], offset: int) -> Generator[None, None, tuple[Marker | None, int]]:
    """The marker `offset` characters from here and where it ends, counted from here too; (None, 0) if there is none."""
    reader = machine.reader
    while True:
        found = markers.match(reader.text, reader.at + offset)
        if found is not None and found.lastindex:
            return markers.values[found.lastindex - 1], found.end() - reader.at
        if found is None and reader.at + offset < len(reader.text):
            return None, 0
        if reader.ended:
            return None, 0
        yield


def cut_off(machine: Machine, markers: Markers[Marker]) -> bool:
    """True if the text is over, and what is left of it is the beginning of one of these markers."""
    reader = machine.reader
    found = markers.match(reader.text, reader.at) if reader.ended else None
    return found is not None and not found.lastindex


def closing(machine: Machine, table: Tables, offset: int) -> Generator[None, None, tuple[str, int]]:
    """The key whose closer stands `offset` characters from here, and where it ends; ("", 0) if none does."""
    reader = machine.reader
    while True:
        found = table.closing(reader.text, reader.at + offset)
        if found is None:
            return "", 0
        if found.lastindex == 2:
            return found[1], found.end() - reader.at
        if reader.ended:
            return "", 0
        yield


@frozen
class Tag:
    """A key, as it stands after its opener."""

    key: str
    types: frozenset[str]
    """The types that its value is marked with; every type, if it is not."""
    end: int
    """Where its value begins, counted from here."""
    repair: str = ""
    """What had to be mended."""


def tag_at(machine: Machine, table: Tables, offset: int) -> Generator[None, None, Tag | None]:
    """The key that stands `offset` characters from here, behind its opener; None if none does.

    Raises:
        Ended: the text ends inside of it.

    """
    reader = machine.reader
    while True:
        text = tag_text(reader.text, reader.at + offset)
        stop = text.end() if text else reader.at + offset
        found = table.ends.match(reader.text, stop)
        if found is not None and found.lastindex:
            break
        if found is None and stop < len(reader.text):
            return (yield from value_in_tag(machine, table, offset, stop - reader.at))
        yield from reader.more()
    end = found.end() - reader.at
    tag = reader.text[reader.at + offset : stop]
    key = key_of(tag, table)
    if not key:
        return None
    kind = attribute_of(tag, table.body.type_attribute) if table.body.type_attribute else ""
    if table.type_ends is not None and table.ends.values[found.lastindex - 1]:
        kind, end = yield from type_at(machine, table.type_ends, end)
    return Tag(key, TYPES.get(kind.strip().lower(), schema.ANY), end)


def value_in_tag(machine: Machine, table: Tables, offset: int, end: int) -> Generator[None, None, Tag | None]:
    """The key of a tag that was never ended and holds its value: `<parameter=k=v</parameter>`."""
    reader = machine.reader
    key, equals, _ = reader.text[reader.at + offset : reader.at + end].partition("=")
    if not equals or table.body.key_rule.attribute or table.keyed or not one_word(key):
        return None
    mark, _ = yield from look(machine, table.between, end)
    if mark is not Marker.VALUE_END:
        return None
    return Tag(key, schema.ANY, offset + len(key) + 1, repair="value_in_tag")


def type_at(machine: Machine, ends: Markers[bool], offset: int) -> Generator[None, None, tuple[str, int]]:
    """The name of a type that stands `offset` characters from here, and where its value begins.

    Raises:
        Mismatch: none stands there.

    """
    reader = machine.reader
    while True:
        text = type_text(reader.text, reader.at + offset)
        stop = text.end() if text else reader.at + offset
        found = ends.match(reader.text, stop)
        if found is not None and found.lastindex:
            return reader.text[reader.at + offset : stop], found.end() - reader.at
        if found is None and stop < len(reader.text):
            raise Mismatch
        yield from reader.more()


def key_of(tag: str, table: Tables) -> str:
    """The key in the rest of a tag: `name="k"` or `k`; "" if there is none. An opener may hold the attribute's name."""
    rule = table.body.key_rule
    if rule.attribute:
        named = any(opener.endswith(f"{rule.attribute}=") for opener, _ in table.body.other_keys)
        return attribute_of(f"{rule.attribute}={tag}" if named and tag[:1] in QUOTES else tag, rule.attribute)
    found = plain_key(tag.strip())
    if found is None or (table.keyed and not one_word(found[1])):
        return ""
    return found[1]


def attribute_of(tag: str, name: str) -> str:
    """The value of an attribute of a tag; "" if it has none."""
    for found in attribute.finditer(tag):
        if found[1] == name:
            return found[2] or found[3] or found[4] or ""
    return ""


def is_key(machine: Machine, table: Tables, offset: int) -> Generator[None, None, str]:
    """The key `offset` characters from here, behind its opener; "" if there is none, or the text ends inside of it."""
    tag = yield from tag_if_any(machine, table, offset)
    return tag.key if tag is not None else ""


def tag_if_any(machine: Machine, table: Tables, offset: int) -> Generator[None, None, Tag | None]:
    """The key `offset` characters from here, behind its opener; None too if the text ends inside of it."""
    try:
        return (yield from tag_at(machine, table, offset))
    except (Ended, Mismatch):
        return None
