"""Names outside JSON, after the opener or in an attribute of its tag, and the bodies that follow them."""

import re
from collections.abc import Generator
from functools import lru_cache

from statemachine.bodies import expression, json_object, parameters
from statemachine.bodies.attributes import read_quoted
from statemachine.bodies.elements import is_arguments_object, may_hold_all
from statemachine.bodies.parameter_markers import Marker, key_at, marker_at
from statemachine.bodies.parameters import ParameterReader, tables
from statemachine.bodies.scalars import raw_value_json, unescape_entities
from statemachine.bodies.words import Pattern, word
from statemachine.endings import ends_call, stop_follows
from statemachine.formats.format import Anchor, Body, Expression, Format, JsonBody, NameRule, Parameters, Variant
from statemachine.formats.markers import Markers, closers_of
from statemachine.formats.openers import Opener, closers_of_parameters, openers_in_values
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch
from statemachine.stream.emitter import Sink

words_text = re.compile(r"[^\s<>{}\[\]()\"'`,=|]*+(?: [^\s<>{}\[\]()\"'`,=|]++)*+ ?").match
"""Matches a name after an equals sign, up to the end of its tag; the name may contain spaces."""
id_text = re.compile(r"[\w.:-]*+").match
attribute_name = re.compile(r"([\w.:-]{1,64})[ \t]{0,16}+=[ \t]{0,16}+[\"']?").match
attribute_begun = re.compile(r"[\w.:-]{0,64}+[ \t]{0,16}+(?:=[ \t]{0,16}+)?\Z").match
bare_value = re.compile(r"[^\s\"'<>/]*+").match


PLAIN = "{name}"
NAME_CHARACTERS = frozenset("_-.:")
"""Characters that continue a name, apart from letters and digits."""
MAX_ENTITY_TEXT = 16 * 1024
"""Maximum length of an object written with entities, in characters."""


@lru_cache(maxsize=128)
def attribute_ends(rule: NameRule) -> Markers[str]:
    """Return the markers that end the attributes of a tag."""
    return Markers([(mark, mark) for mark in rule.ends])


@lru_cache(maxsize=128)
def pattern_of(spelling: str) -> Pattern:
    """Return the pattern for the spelling of a name (`NameRule.spelling`); the text around the name is optional."""
    before, _, after = spelling.partition("{name}")
    after = re.escape(after).replace(r":\{index\}", r"[:!]\d+").replace(r"\{name\}", "(?P=name)")
    return re.compile(rf"(?:{re.escape(before)})?+(?P<name>.+?)(?:{after})?\Z").match


def read(machine: Machine, opener: Opener, start: int) -> Grammar:
    """Read the name, then the body that follows it. `start` is the number of pieces buffered before the opener."""
    form, variant = opener.names[0]
    if variant.name_rule is None or opener.ends is None:
        raise Mismatch
    machine.candidate.format = form
    if variant.name_rule.attribute:
        named_here = opener.literal.endswith(variant.name_rule.attribute + "=")
        closed = yield from tag(machine, variant.name_rule, form, variant.body, named_here=named_here)
        if closed:
            return
        yield from skip_repeated_header(machine, start)
        if len(opener.names) > 1:
            form, variant = yield from by_first_key(machine, opener)
    else:
        form, variant, over = yield from plain_name(machine, opener, opener.ends, start)
        if over:
            no_arguments(machine)
            return
        if not isinstance(variant.body, Expression):
            yield from skip_repeated_header(machine, start)
    match variant.body:
        case JsonBody() if (
            variant.name_rule and "(" in variant.name_rule.ends and (yield from expression.keyword_follows(machine))
        ):
            yield from expression.arguments_in_brackets(machine)
        case JsonBody(text=default):
            yield from json_object.read(machine, default)
        case Parameters():
            yield from parameters.read(machine, form, variant.body)
        case Expression():
            yield from expression.bracketed_arguments(machine, variant.body)
        case _:
            raise Mismatch


def by_first_key(machine: Machine, opener: Opener) -> Generator[None, None, tuple[Format, Variant]]:
    """Return the format and variant whose parameters begin here, or the first one if none do.

    Formats whose tags are the keys are tried last, because any tag may begin their parameters.
    """
    yield from machine.skip_whitespace()
    ways: dict[Body, tuple[Format, Variant]] = {}
    for form, variant in opener.names:
        ways.setdefault(variant.body, (form, variant))
    keyed = {body: isinstance(body, Parameters) and "{key}" in body.close for body in ways}
    for body in sorted(ways, key=keyed.__getitem__):
        if isinstance(body, Parameters):
            form, variant = ways[body]
            table = tables(body, openers_in_values(form), closers_of_parameters(form))
            mark, end = yield from marker_at(machine, table.between, 0)
            begins = mark in (Marker.KEY, Marker.OPEN)
            if begins and not (keyed[body] and not (yield from key_at(machine, table, end))):
                if not machine.candidate.committed:
                    machine.candidate.format = form
                return form, variant
    return opener.names[0]


def no_arguments(machine: Machine) -> None:
    """Begin and end the arguments of a call that has none."""
    machine.begin_arguments()
    machine.reader.emit_arguments("{}")
    machine.candidate.arguments.complete = True


def plain_name(
    machine: Machine, opener: Opener, ends: Markers[tuple[Format, Variant, str]], start: int
) -> Generator[None, None, tuple[Format, Variant, bool]]:
    """Read a name and an optional id, up to one of the ends. Return the format and variant that the end belongs to, and
    whether the call ends with its name. `start` is the number of pieces buffered before the opener.
    """
    reader = machine.reader
    yield from first_id(machine, opener.names[0][1].name_rule)
    if opener.lead:
        machine.set_marked(False)
    quote = (yield from reader.peek()) in "\"'"
    if quote:
        reader.take(1)
    try:
        name = (yield from word(machine, words_text if opener.literal.endswith("=") else opener.name_text)).rstrip(" ")
    except EndOfText:
        if not is_whole_call(machine, opener, reader.text[reader.at :]):
            raise
        set_name(machine, reader.take(len(reader.text) - reader.at))
        return (*opener.names[0], True)
    if quote and (yield from reader.peek()) in "\"'":
        reader.take(1)
    name = opener.lead + name
    if any(variant.name_rule and name in variant.name_rule.ignored_words for _, variant in opener.names):
        yield from machine.skip_whitespace()
        if reader.text[reader.at] != "{":
            name = yield from word(machine)
    yield from skip_repeated_header(machine, start)
    mark = len(reader.buffered.pieces)
    try:
        form, variant, end, length = yield from name_end(machine, ends, name)
    except EndOfText:
        if not reader.text[reader.at :].strip() and is_whole_call(machine, opener, name):
            set_name(machine, name)
            return (*opener.names[0], True)
        if "\n" in reader.buffered.text(mark):
            set_name(machine, name)
        raise
    machine.set_marked(True)
    rule = variant.name_rule
    if rule is not None and rule.one_line and "\n" in reader.buffered.text(mark):
        raise Mismatch
    machine.candidate.format = form
    kept = (variant.body.key, variant.body.close) if isinstance(variant.body, Parameters) else ()
    if end not in ("{", form.close, *kept):
        reader.take(length)
    over = not end
    if end == ">" and name.endswith("/"):
        name, over, machine.candidate.self_closed = name.rstrip("/ "), True, True
    if rule is not None and rule.spelling != PLAIN:
        found = pattern_of(rule.spelling)(name)
        name, spelled = found["name"] if found else name, name
        if "{index}" in rule.spelling:
            machine.candidate.id = spelled
            name = (name.isdecimal() and machine.tools.only_tool) or name
    set_name(machine, name)
    return form, variant, over


def skip_repeated_header(machine: Machine, start: int) -> Grammar:
    """Skip the opener and the name if they are written again before any argument, with or without the wrappers around
    them. `start` is the number of pieces buffered before the opener.

    Raises:
        EndOfText: the text ends inside the second header.
    """
    reader, candidate = machine.reader, machine.candidate
    if reader.sink is not Sink.HOLD:
        return
    header = "".join(reader.buffered.text(start).split())
    whole = "".join(reader.buffered.text().split())
    length = 1
    while length:
        length = yield from repeated_text(machine, header)
        if not length and whole != header and not candidate.in_fence:
            length = yield from repeated_text(machine, whole)
        if length:
            reader.take(length)
            candidate.arguments.json.add_repair("repeated_opener")


def repeated_text(machine: Machine, text: str) -> Generator[None, None, int]:
    """Return the length of this text, given without whitespace, if it follows here, or 0. Whitespace is ignored.

    Raises:
        EndOfText: the text ends inside it.
    """
    reader, offset = machine.reader, 0
    for count, char in enumerate(text):
        offset = yield from reader.whitespace_end(offset)
        if offset < 0 or (not count and reader.at + offset >= len(reader.text)):
            return 0
        if reader.at + offset >= len(reader.text):
            raise EndOfText
        if reader.text[reader.at + offset] != char:
            return 0
        offset += 1
    if not text[-1].isalnum():
        return offset
    while reader.at + offset >= len(reader.text) and not reader.ended:
        yield
    follows = reader.text[reader.at + offset : reader.at + offset + 1]
    return 0 if follows.isalnum() or follows in NAME_CHARACTERS else offset


def first_id(machine: Machine, rule: NameRule | None) -> Grammar:
    """Consume an id before the name, and the marker that ends it."""
    reader = machine.reader
    if rule is None or not rule.id_end:
        return
    found = yield from word(machine, id_text)
    ends = closers_of((rule.id_end,))
    while (end := ends.match(reader.text, reader.at)) and not end.lastindex:
        yield from reader.more()
    if end is None:
        raise Mismatch
    reader.take(end.end() - reader.at)
    machine.candidate.id = found
    yield from machine.skip_whitespace()


def name_end(
    machine: Machine, ends: Markers[tuple[Format, Variant, str]], name: str
) -> Generator[None, None, tuple[Format, Variant, str, int]]:
    """Return the marker that ends the name, and its length, without consuming it; if an id precedes the marker, read
    the id. If the call ends with its name, the marker is "".
    """
    reader = machine.reader
    form, variant, _ = ends.values[0]
    while True:
        if is_label(form, variant) and (yield from is_alone(machine, name)):
            return form, variant, "", 0
        yield from machine.skip_whitespace()
        found = ends.match(reader.text, reader.at)
        if found is None:
            if ends_without_closer(form) and (
                (yield from ends_call(machine, 0, own=True))
                or (machine.tools.resolve(name) is not None and (yield from stop_follows(machine)))
            ):
                return form, variant, "", 0
            raise Mismatch
        if found.lastindex:
            form, variant, end = ends.values[found.lastindex - 1]
            length = found.end() - reader.at
            if variant.name_rule is None or end != variant.name_rule.id:
                return form, variant, end, length
            reader.take(length)
            yield from machine.skip_whitespace()
            machine.candidate.id = yield from word(machine, id_text)
        else:
            yield from reader.more()


def is_label(form: Format, variant: Variant) -> bool:
    """Return whether the name of a call is a line of labels, which needs no closer outside a fence."""
    return form.anchor is Anchor.LINE and isinstance(variant.body, Parameters)


def is_alone(machine: Machine, name: str) -> Generator[None, None, bool]:
    """Return whether the name is a whole call: the label of another call, or the end of the reply, follows it."""
    reader = machine.reader
    if machine.tools.resolve(name) is None or not (yield from ends_call(machine, 0)):
        return False
    return machine.stopped or bool(reader.text[reader.at :].strip())


def ends_without_closer(form: Format) -> bool:
    """Return whether calls of a format end without their closer, so that nothing need follow the name of a call."""
    return bool(form.close) and not form.closed


def is_whole_call(machine: Machine, opener: Opener, name: str) -> bool:
    """Return whether the reply may end after the name of a call, in a format without closers."""
    form, variant = opener.names[0]
    ends = ends_without_closer(form) or is_label(form, variant)
    return machine.stopped and ends and machine.tools.resolve(name) is not None


def set_name(machine: Machine, name: str) -> None:
    """Record the name; disown the call immediately if no such tool is offered."""
    machine.set_name(name)
    if not machine.candidate.offered:
        machine.disown()


def tag(machine: Machine, rule: NameRule, form: Format, body: Body, *, named_here: bool) -> Generator[None, None, bool]:
    """Read the attributes of the opener's tag: the name, then any arguments. Return whether the tag closed itself.

    `named_here` means that the opener already contains the name's attribute and its equals sign.
    """
    reader = machine.reader
    if not isinstance(body, Parameters):
        raise Mismatch
    ends = attribute_ends(rule)
    reading: ParameterReader | None = None
    while True:
        mark = len(reader.buffered.pieces)
        yield from machine.skip_whitespace()
        if rule.one_line and "\n" in reader.buffered.text(mark):
            raise Mismatch
        found = ends.match(reader.text, reader.at)
        if found is not None:
            if found.lastindex:
                break
            yield from reader.more()
            continue
        key = rule.attribute if named_here and reading is None else (yield from attribute_key(machine))
        if key in rule.ignored_words:
            yield from attribute_text(machine)
        elif reading is None:
            if key != rule.attribute:
                raise Mismatch
            name = yield from attribute_text(machine)
            spelled = pattern_of(rule.spelling)(name) if rule.spelling != PLAIN else None
            set_name(machine, spelled["name"] if spelled else name)
            reading = ParameterReader(machine, tables(body, openers_in_values(form), closers_of_parameters(form)))
        elif not (yield from all_in_attribute(machine, reading, key)):
            yield from argument(machine, reading, key)
    if reading is None:
        raise Mismatch
    end = ends.values[found.lastindex - 1]
    reader.take(found.end() - reader.at)
    if end.startswith("/"):
        reading.end()
        machine.candidate.self_closed = True
        return True
    return False


def attribute_key(machine: Machine) -> Generator[None, None, str]:
    """Consume the key of an attribute and its equals sign, but not the opening quote; return the key."""
    reader = machine.reader
    while True:
        found = attribute_name(reader.text, reader.at)
        if found and found.end() < len(reader.text):
            break
        if not found and not attribute_begun(reader.text, reader.at):
            raise Mismatch
        yield from reader.more()
    quote = found[0][-1] in "\"'"
    reader.take(found.end() - reader.at - quote)
    return found[1]


def attribute_text(machine: Machine) -> Generator[None, None, str]:
    """Consume a short, complete attribute value, and return it without entities."""
    reader = machine.reader
    captured: list[str] = []
    quote = reader.text[reader.at]
    if quote not in "\"'":
        return unescape_entities((yield from word(machine, bare_value)))
    reader.take(1)
    while (char := (yield from reader.peek())) != quote:
        if len(captured) > machine.limits.name or char in "<>\r\n":
            raise Mismatch
        captured.append(reader.take(1))
    reader.take(1)
    return unescape_entities("".join(captured))


def all_in_attribute(machine: Machine, reading: ParameterReader, key: str) -> Generator[None, None, bool]:
    """Read an attribute whose value is one object that contains all arguments. Return False, without consuming
    anything, if it is an ordinary argument.

    The object is written as JSON, as a JSON string, or with entities. An entity may contain any character, so such an
    object is read in one piece.
    """
    reader = machine.reader
    quote = reader.text[reader.at] if reader.text[reader.at] in "\"'" else ""
    if not may_hold_all(machine, reading.level, key):
        return False
    if not (yield from is_arguments_object(machine, reading.level, key, len(quote))):
        return False
    brace = yield from reader.whitespace_end(len(quote))
    offset = yield from reader.whitespace_end(brace + 1)
    char = reader.text[reader.at + offset : reader.at + offset + 1]
    if quote and char == "&":
        yield from object_with_entities(machine, reading, quote)
    elif quote and char == "\\":
        yield from reading.all_arguments()
    else:
        reader.take(brace)
        yield from reading.all_arguments()
        yield from machine.skip_whitespace()
        if quote and reader.text[reader.at] != quote:
            raise Mismatch
        reader.take(len(quote))
    return True


def object_with_entities(machine: Machine, reading: ParameterReader, quote: str) -> Grammar:
    """Read an attribute whose value is an object written with entities (`&quot;`)."""
    reader = machine.reader
    length = 1
    while (end := reader.text.find(quote, reader.at + length)) < 0:
        length = len(reader.text) - reader.at
        if length > MAX_ENTITY_TEXT:
            raise Mismatch
        yield from reader.more()
    text = unescape_entities(reader.text[reader.at + 1 : end])
    reader.take(end + 1 - reader.at, "argument")
    yield from reading.all_arguments(text)


def argument(machine: Machine, reading: ParameterReader, key: str) -> Grammar:
    """Read an attribute that is an argument: a string is streamed, and any other value is read in one piece."""
    reader = machine.reader
    types = reading.open_key(reading.parameter_name(key))
    quote = reader.text[reader.at]
    if quote not in "\"'":
        value = unescape_entities((yield from word(machine, bare_value)))
        reader.emit_arguments(raw_value_json(value, types))
    else:
        yield from read_quoted(machine, types)
    machine.candidate.arguments.open_value = False
