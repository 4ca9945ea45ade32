"""Compiled form of a declaration of marked parameters: its markers, the runs for its values, and the markers that end a
key.

If a closer repeats its key (`</{key}>`), the markers recognize only the beginning of such a closer; `closing_key_at`
determines which key it closes. Keys come from the model, so nothing is compiled for a key unless the tool's schema
declares it: the run for its value then passes over every other tag (`declared_value_run`).
"""

import re
from collections.abc import Callable, Generator
from enum import Enum
from functools import lru_cache
from re import Match

from attrs import frozen

from statemachine import schema
from statemachine.bodies.scalars import unescape_entities
from statemachine.formats.format import NameRule, Parameters
from statemachine.formats.markers import Markers, names_other, text_run
from statemachine.formats.openers import with_name
from statemachine.formats.table import FORMATS
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import EndOfText, Mismatch
from statemachine.stream.runs import Run, json_escape

VALUE_ATTRIBUTE = "value"
"""Attribute of a parameter's tag that contains the parameter's value."""
MAX_KEY = 300
"""Maximum length of a key with its attributes, in characters."""

tag_text = re.compile(rf"[^<>\r\n]{{0,{MAX_KEY}}}+").match
type_text = re.compile(r"[\w. -]{0,64}+").match
attribute = re.compile(
    r"[ \t]*+([\w.:-]{1,64})[ \t]*+=[ \t]*+"
    r"(?:\"([^\"<>]{0,256})\"|'([^'<>]{0,256})'|([^\s\"'<>=/]{1,256}))"
)
plain_key = re.compile(r"[\"']?([^\"'<>]{1,256}?)[\"']?").fullmatch
key_before_value = re.compile(r"[\"']?([\w.:-]{1,256}?)[\"']?[ \t]++value[ \t]*+=").match
"""Matches a key without an attribute, before the attribute that contains its value."""
WORD = rf"-{{0,2}}[A-Za-z_][^\s\"'<>/={{}}]{{0,{MAX_KEY}}}+"
QUOTES = ('"', "'")
one_word = re.compile(WORD).fullmatch
"""Matches a key that its closer can repeat."""

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
"""Types that a type mark permits; an unknown mark permits all types."""


class Marker(Enum):
    """Kind of a marker inside a call."""

    CALL = "the opener of a call"
    KEY = "a key opener"
    SHOWN_KEY = "a key opener of a format with the same closers, which can only be shown"
    VALUE_END = "the value's closer"
    CALL_END = "the call's closer"
    OTHER_VALUE_END = "a value closer that names another parameter"
    OTHER_CALL_END = "a call closer that names another call"
    OPEN = "the opener of a wrapper around parameters"
    CLOSE = "the closer of a wrapper around parameters"
    ESCAPE = "the beginning of a marker that is text, because it contains a zero-width space"


@frozen(eq=False)
class ValueEnds:
    """Markers that may end a raw value, and the run for its text."""

    markers: Markers[Marker]
    run: Run


@frozen(eq=False)
class Tables:
    """Markers and runs compiled from a declaration."""

    body: Parameters
    openers: tuple[str, ...]
    """Openers of a call."""
    closes: tuple[str, ...]
    """Closers of the call."""
    line_keys: bool
    """Whether a key ends with its line."""
    keyed: bool
    """Whether the closer of a value repeats the value's key."""
    between: Markers[Marker]
    """Markers between values."""
    outline: Markers[Marker]
    """Markers between values, including the openers of keys in another format."""
    inner: Markers[Marker]
    """Markers between values that do not end the call."""
    plain: ValueEnds
    """Markers and run for the inside of a raw value."""
    trimmed: ValueEnds
    """Like `plain`, for a value that begins on its own line, so that the line break before its closer is markup too."""
    call_tag: Callable[[str, int], Match[str] | None]
    """Matches the text after the opener of a call whose name is in its tag, or a prefix of that text (group 1). Group 2
    matches if a call may continue there; the alternative is a tag that closes itself.
    """
    call_name: Callable[[str, int], Match[str] | None]
    """Like `call_tag`, if the name follows the opener."""
    tag_text: Callable[[str, int], Match[str] | None]
    """Matches the text of a key's tag."""
    ends: Markers[bool]
    """Markers that end a key; true if the key's type follows."""
    type_ends: Markers[bool] | None
    closing: Callable[[str, int], Match[str] | None]
    """Matches a closer that repeats its key, optionally after a line break: the key is group 1; group 2 matches if the
    closer is complete.
    """
    quote_open: Markers[Marker] | None
    quoted: ValueEnds | None
    """Markers and run for the inside of the quotes that may surround a value."""


def tag_text_before(ends: tuple[str, ...]) -> Callable[[str, int], Match[str] | None]:
    """Return a match for the text of a tag that one of these markers ends. It contains no character that begins one of
    them.
    """
    first = "".join(sorted({end[0] for end in ends} - set("<>{")))
    return re.compile(rf"[^<>\r\n{re.escape(first)}]{{0,{MAX_KEY}}}+").match if first else tag_text


@lru_cache(maxsize=256)
def tables(body: Parameters, openers: tuple[str, ...], closes: tuple[str, ...]) -> Tables:
    """Compile the markers of a declaration for a call with these openers and closers."""
    before, keyed, after = body.close.partition("{key}")
    ends = [(close, Marker.CALL_END) for close in closes]
    keys = (body.key, *(key for key, _ in body.other_keys), *body.foreign_keys)
    close = f"{before}{{k}}" if keyed else with_name(body.close, keys)
    ends += [(body.key, Marker.KEY), (close, Marker.VALUE_END)]
    for other_key, other_close in body.other_keys:
        ends += [(other_key, Marker.KEY), (with_name(other_close, keys), Marker.VALUE_END)]
    ends = list(dict(ends).items())
    around = [
        (text, mark) for pair in body.wrappers for text, mark in zip(pair, (Marker.OPEN, Marker.CLOSE), strict=True)
    ]
    other_openers, other_keys = related_openers(body, closes)
    within = [*((opener, Marker.CALL) for opener in (*openers, *other_openers)), *ends]
    within += [(text, Marker.ESCAPE) for text in body.escapes]
    within += [(text, Marker.SHOWN_KEY) for text in other_keys]
    within = list(dict(reversed(within)).items())[::-1]
    plain = compile_inside(within, trimmed=False)
    closing = rf"(?:\r?\n)?+{re.escape(before)}({WORD}|-{{1,2}}\Z)(?:\Z|{Markers([(after, True)]).expression()})"
    between = dict(ends + around)
    outline = between | dict.fromkeys(body.foreign_keys, Marker.KEY)
    quote_open, quoted = None, None
    if body.quote:
        quote_open = Markers([(body.quote[0], Marker.OPEN)])
        quoted = compile_inside([(body.quote[0], Marker.OPEN), (body.quote[1], Marker.VALUE_END)], trimmed=False)
    continues = f"(?=[{re.escape(''.join(sorted({text[0] for text in between} | {'{', '<'})))}])()"
    after_name = continues.replace("(?=[", r"(?=[\r\n")
    space = rf"[ \t\r\n]{{0,{MAX_KEY}}}+"
    return Tables(
        body=body,
        openers=openers,
        closes=closes,
        line_keys=all(end.endswith("\n") for end in body.key_rule.ends),
        keyed=bool(keyed),
        between=Markers(between.items()),
        outline=Markers(outline.items()),
        inner=Markers([(text, mark) for text, mark in between.items() if mark is not Marker.CALL_END]),
        plain=plain,
        trimmed=compile_inside(within, trimmed=True) if body.trim else plain,
        call_tag=re.compile(rf"[^<>{{\r\n\]]{{0,{MAX_KEY}}}+(?:/>|>?+{space}(?:(\Z)|{continues}))").match,
        call_name=re.compile(
            rf"(?:[ \t]{{0,16}}+\r?\n{space})?+[\w.:-]{{0,{MAX_KEY}}}+(?:[ \t]{{0,16}}+\r?+(\Z)|{after_name})"
        ).match,
        tag_text=tag_text_before(body.key_rule.ends),
        ends=Markers([*((end, False) for end in body.key_rule.ends), *((mark, True) for mark in body.type_marks[:1])]),
        type_ends=Markers([(body.type_marks[1], False)]) if body.type_marks else None,
        closing=re.compile(closing if keyed else "(?!)").match,
        quote_open=quote_open,
        quoted=quoted,
    )


def related_openers(body: Parameters, closes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the openers of calls and of keys in other formats whose calls and values have the same closers: a value
    may show a call in such a format.
    """
    own = pairs_of(body)
    calls: dict[str, None] = {}
    keys: dict[str, None] = {}
    for form in FORMATS.values():
        for variant in form.variants:
            closed = with_name(form.close, form.openers) in closes
            if closed and isinstance(variant.body, Parameters) and "{key}" not in body.close:
                shared = [key for key, close in pairs_of(variant.body).items() if close in own.values()]
                keys.update((key, None) for key in shared if key not in own)
                calls.update((opener, None) for opener in form.openers if shared and not opener[0].isalpha())
    return (list(calls), list(keys)) if keys else ([], [])


def pairs_of(body: Parameters) -> dict[str, str]:
    """Return the openers of keys, each with the closer of its value."""
    return {body.key: body.close, **dict(body.other_keys)}


def compile_inside(ends: list[tuple[str, Marker]], *, trimmed: bool) -> ValueEnds:
    """Compile the markers and the run for the inside of a raw value that these markers may end."""
    openers = ("", "\n", "\r\n") if trimmed else ("",)
    markers = Markers([(lead + text, mark) for text, mark in ends for lead in openers])
    return ValueEnds(markers, text_run(Markers(ends), convert=json_escape, trim=trimmed))


@lru_cache(maxsize=256)
def declared_value_run(table: Tables, key: str, names: tuple[str, ...], *, trimmed: bool) -> Run:
    """Return the run for a declared parameter's value, for a format whose closers repeat the key.

    It stops only at markers that may end this value; other tags are text.
    """
    opener = table.body.key.removesuffix("{k}")
    ends = [table.body.close.replace("{key}", key), *table.closes]
    stops = sorted([*ends, *table.openers, *(opener + name for name in names if one_word(name))])
    # A name may be the beginning of a marker, or of another name.
    return text_run(Markers([(text, True) for text in stops], shortest=True), convert=json_escape, trim=trimmed)


# ---- lookahead: offsets are relative to the reader's position, so that they remain valid across a wait for more text


def marker_at(
    machine: Machine, markers: Markers[Marker], offset: int, key: str = ""
) -> Generator[None, None, tuple[Marker | None, int]]:
    """Return the marker at `offset`, and the offset of its end, or (None, 0) if no marker is there. `key` is that
    of the open value.
    """
    reader = machine.reader
    while True:
        found = markers.match(reader.text, reader.at + offset)
        if found is not None and found.lastindex:
            mark = markers.values[found.lastindex - 1]
            if mark is Marker.VALUE_END and names_other(found[0], key):
                mark = Marker.OTHER_VALUE_END
            elif mark is Marker.CALL_END and names_other(found[0], machine.candidate.name):
                mark = Marker.OTHER_CALL_END
            return mark, found.end() - reader.at
        if found is None and reader.at + offset < len(reader.text):
            return None, 0
        if reader.ended:
            return None, 0
        yield


def is_cut_off(machine: Machine, markers: Markers[Marker]) -> bool:
    """Return whether the text has ended in the middle of one of these markers."""
    reader = machine.reader
    found = markers.match(reader.text, reader.at) if reader.ended else None
    return found is not None and not found.lastindex


def closing_key_at(machine: Machine, table: Tables, offset: int) -> Generator[None, None, tuple[str, int]]:
    """Return the key whose closer is at `offset`, and the offset of the closer's end, or ("", 0) if no closer is
    there.
    """
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
    """Key as written after its opener."""

    key: str
    types: frozenset[str]
    """Types that the key's type mark permits; every type if the key has no type mark."""
    end: int
    """Offset of the key's value."""
    repair: str = ""
    """Name of the repair that the tag needed; "" if none."""
    value: str | None = None
    """Value in an attribute of the tag."""
    closed: bool = False
    """Whether the tag closes itself, so that no value follows."""


def tag_at(machine: Machine, table: Tables, offset: int) -> Generator[None, None, Tag | None]:
    """Return the tag of the key at `offset`, after its opener, or None if no key is there.

    Raises:
        EndOfText: the text ends inside the tag.
    """
    reader = machine.reader
    while True:
        text = table.tag_text(reader.text, reader.at + offset)
        stop = text.end() if text else reader.at + offset
        found = table.ends.match(reader.text, stop)
        if found is not None and found.lastindex:
            break
        if found is None and stop < len(reader.text):
            return (yield from value_in_tag(machine, table, offset, stop - reader.at))
        yield from reader.more()
    end = found.end() - reader.at
    tag = reader.text[reader.at + offset : stop]
    rule = table.body.key_rule
    after_equals = not offset or reader.text[reader.at + offset - 1] == "="
    foreign = bool(table.body.foreign_keys) and (not rule.attribute or after_equals)
    key = key_of(tag, table)
    if not key and foreign:
        key = foreign_key_of(tag, rule)
    if not key:
        return None
    kind = attribute_of(tag, table.body.type_attribute) if table.body.type_attribute else ""
    if table.type_ends is not None and table.ends.values[found.lastindex - 1]:
        kind, end = yield from type_at(machine, table.type_ends, end)
    types = TYPES.get(kind.strip().lower(), schema.ANY)
    if not (rule.attribute or (foreign and plain_key(tag.strip()) is None)) or not ("value" in tag or tag[-1:] == "/"):
        return Tag(key, types, end)
    value = attribute_of(tag, VALUE_ATTRIBUTE) if re.search(r"\bvalue[ \t]*=", tag) else None
    return Tag(key, types, end, value=value, closed=tag[-1:] == "/")


def value_in_tag(machine: Machine, table: Tables, offset: int, end: int) -> Generator[None, None, Tag | None]:
    """Return an unterminated tag that contains its own value, as in `<parameter=k=v</parameter>`, or None if the tag is
    not of this kind.
    """
    reader = machine.reader
    key, equals, _ = reader.text[reader.at + offset : reader.at + end].partition("=")
    if not equals or table.body.key_rule.attribute or table.keyed or not one_word(key):
        return None
    mark, _ = yield from marker_at(machine, table.between, end)
    if mark is not Marker.VALUE_END:
        return None
    return Tag(key, schema.ANY, offset + len(key) + 1, repair="value_in_tag")


def type_at(machine: Machine, ends: Markers[bool], offset: int) -> Generator[None, None, tuple[str, int]]:
    """Return the name of a type at `offset`, and the offset of the value.

    Raises:
        Mismatch: no type name is there.
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
    """Return the key in the remainder of a tag, `name="k"` or `k`, or "" if the tag contains no key.

    An opener may itself contain the attribute's name.
    """
    rule = table.body.key_rule
    if rule.attribute:
        named = any(opener.endswith(f"{rule.attribute}=") for opener, _ in table.body.other_keys)
        return attribute_of(f"{rule.attribute}={tag}" if named and tag[:1] in QUOTES else tag, rule.attribute)
    found = plain_key(tag.strip())
    if found is None or (table.keyed and not one_word(found[1])):
        return ""
    return found[1]


def foreign_key_of(tag: str, rule: NameRule) -> str:
    """Return the key in the remainder of a tag that is written as another format writes it, or "" if it contains no
    key: `name="k"` where the key is plain, `k` where it is an attribute, and `k value="…"` in both cases.
    """
    found = key_before_value(tag) or (plain_key(tag.strip()) if rule.attribute and "=" not in tag else None)
    return found[1] if found is not None else attribute_of(tag, "name") if not rule.attribute else ""


def attribute_of(tag: str, name: str) -> str:
    """Return the value of an attribute of a tag, or "" if it is missing."""
    for found in attribute.finditer(tag):
        if found[1] == name:
            return unescape_entities(found[2] or found[3] or found[4] or "")
    return ""


def key_at(machine: Machine, table: Tables, offset: int) -> Generator[None, None, str]:
    """Return the key at `offset`, after its opener, or "" if no key is there or the text ends inside it."""
    tag = yield from find_tag(machine, table, offset)
    return tag.key if tag is not None else ""


def find_tag(machine: Machine, table: Tables, offset: int) -> Generator[None, None, Tag | None]:
    """Return the tag at `offset`, after its opener, or None if no key is there or the text ends inside it."""
    try:
        return (yield from tag_at(machine, table, offset))
    except (EndOfText, Mismatch):
        return None


def closes_here(machine: Machine, table: Tables) -> Generator[None, None, bool]:
    """Return whether the closer of a value is here."""
    return (yield from marker_at(machine, table.between, 0))[0] is Marker.VALUE_END


def take_value_closer(machine: Machine, table: Tables, key: str) -> Generator[None, None, bool]:
    """Consume the closers of the value of a key, and of a quote around it, if they are here. Return whether the value's
    closer was here.
    """
    reader = machine.reader
    if table.quoted is not None:
        offset = yield from reader.whitespace_end(0)
        mark, end = (yield from marker_at(machine, table.quoted.markers, offset)) if offset >= 0 else (None, 0)
        if mark is Marker.VALUE_END:
            reader.take(end)
    offset = yield from reader.whitespace_end(0)
    mark, end = (yield from marker_at(machine, table.between, offset, key)) if offset >= 0 else (None, 0)
    if mark is Marker.VALUE_END and table.keyed:
        name, end = yield from closing_key_at(machine, table, offset)
        mark = mark if name == key else None
    if mark is Marker.VALUE_END:
        reader.take(end)
    return mark is Marker.VALUE_END
