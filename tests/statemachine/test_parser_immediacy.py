"""Text is emitted by the feed that brought it: starts, first arguments, each piece of a string."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.statemachine_fold import pieces
from support.sweeps import each

from statemachine import FORMATS, ArgumentsDelta, Call, CallStart, Parser, TextDelta, write
from statemachine.formats import Anchor, Envelope, Expression, JsonBody, Parameters
from statemachine.formats.markers import spell

VALUE = "Grüße, a value of some length with no character that needs an escape. " * 3
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS: dict[str, dict[str, Any]] = {"with a schema": {"say": SCHEMA}, "without a schema": {"say": {}}}

every_format = each("form", sorted(FORMATS))
with_and_without = each("tools", TOOLS.values(), ids=TOOLS)


def reply(form: str, value: str = VALUE) -> tuple[str, int, int]:
    """Return a call in a format, and the start and end of its string value in the text."""
    text = write([Call("say", json.dumps({"text": value}, ensure_ascii=False))], form)
    start = text.index(value)
    return text, start, start + len(value)


def every(text: str, form: str, tools: Any, size: int = 1) -> Iterator[tuple[int, list[Any]]]:
    """Yield the end of each piece and the events that it brought."""
    parser = Parser(tools, formats=[form])
    end = 0
    for piece in pieces(text, size):
        end += len(piece)
        yield end, parser.feed(piece)


@every_format
@with_and_without
def test_the_first_character_of_a_string_yields_arguments(form: str, tools: Any) -> None:
    text, start, _ = reply(form)
    at_first = dict(every(text, form, tools))[start + 1]
    assert any(isinstance(event, ArgumentsDelta) and event.text.endswith("G") for event in at_first), at_first


@every_format
@with_and_without
def test_each_piece_of_a_string_is_emitted_by_its_feed(form: str, tools: Any) -> None:
    text, start, stop = reply(form)
    for size in (1, 2, 3, 4, 5, 7, 16):
        for end, events in every(text, form, tools, size):
            if end - size > start and end <= stop:
                assert events == [ArgumentsDelta(0, text[end - size : end])], f"in pieces of {size}"


@every_format
@with_and_without
def test_escapes_are_emitted_when_complete(form: str, tools: Any) -> None:
    """With pieces of four characters of a value full of escapes, only an incomplete escape may be buffered."""
    value = 'say "a\\b"\n\tthen é😀 ' * 20
    text = write([Call("say", json.dumps({"text": value}))], form)
    first, last = re.search(r'say \\*+["\']', text).start(), text.rindex("then")  # type: ignore[union-attr]  # is there
    longest = len("\\\\ud83d\\\\ude0") if "\\\\" in text else len("\\ud83d\\ude0")
    parser = Parser(tools, formats=[form])
    end = 0
    for piece in pieces(text, 4):
        parser.feed(piece)
        end += 4
        if first < end <= last:
            assert parser.held <= longest, f"{parser.held} buffered after {piece!r}"


@every_format
@with_and_without
def test_a_call_starts_in_the_feed_that_commits_it(form: str, tools: Any) -> None:
    """At the name if the envelope has its own marker, otherwise where the body begins."""
    text, _, _ = reply(form)
    name = text.index("say")
    match FORMATS[form].variants[0].body:
        case Envelope() if FORMATS[form].openers or FORMATS[form].fence:
            commits = name + len('say"')
        case Parameters(key=key) if key.endswith("{k}"):  # the marker is the complete tag
            commits = text.index("<text>") + len("<text>")
        case Parameters(key=key):
            commits = text.index(spell(key), name) + len(spell(key)) + key.endswith("{ }")
        case Expression() if FORMATS[form].anchor is not Anchor.ANYWHERE:  # only an argument shows that it is not prose
            commits = text.index("=", name) + 2
        case Expression(brackets=brackets):
            commits = text.index(brackets[0], name) + 1
        case JsonBody(text=word) if word:  # a brace may also begin text
            commits = text.index('{"', name) + 2
        case _:
            commits = text.index("{", name) + 1
    start = next(
        end for end, events in every(text, form, tools) if any(isinstance(event, CallStart) for event in events)
    )
    assert start <= commits


@every_format
def test_a_complete_reply_in_one_feed_is_a_complete_call(form: str) -> None:
    text, _, _ = reply(form)
    parser = Parser(TOOLS["with a schema"], formats=[form])
    kinds = [type(event) for event in [*parser.feed("\n" + text), *parser.close()]]
    assert kinds.count(CallStart) == 1
    assert kinds.index(ArgumentsDelta) == kinds.index(CallStart) + 1


def test_text_in_the_same_piece_as_an_opener_is_emitted_immediately() -> None:
    parser = Parser(TOOLS["with a schema"])
    assert parser.feed("Now: <tool_call>\n{") == [TextDelta("Now: ")]


def test_several_calls_in_one_piece() -> None:
    text = write([Call("say", "{}"), Call("say", '{"text": "a"}')], "tool_call")
    parser = Parser(TOOLS["with a schema"])
    kinds = [type(event).__name__ for event in parser.feed(f"A\n{text}\nB")]
    call = ["CallStart", "ArgumentsDelta", "CallEnd"]
    assert kinds == ["TextDelta", *call, *call, "TextDelta"]


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        ("string", "12", 0),
        ("integer", "12", 2),
        (["string", "integer"], "12", 2),
        (["string", "integer"], "12x", 0),
        ("integer", "x", 0),
    ],
)
def test_a_value_is_buffered_only_until_its_type_is_known(kind: Any, value: str, held: int) -> None:
    parser = Parser({"f": {"properties": {"k": {"type": kind}}}})
    for char in f"<function=f><parameter=k>{value}":
        parser.feed(char)
    assert parser.held == held


def test_containers_stream_if_the_parameter_cannot_be_a_string() -> None:
    parser = Parser({"f": {"properties": {"k": {"type": "object"}}}})
    parser.feed('<function=f>\n<parameter=k>\n{"a": "')
    for piece in ("some", " tex", "t {}"):
        assert parser.feed(piece) == [ArgumentsDelta(0, piece)]


def test_final_content_streams_as_it_is_decoded() -> None:
    parser = Parser({"f": {}}, formats=["action_object"])
    parser.feed('{"final": {"content": "')
    for piece, text in (("Hell", "Hell"), ("o\\", "o"), ("n", "\n"), ("\\ud83d", ""), ("\\ude00!", "😀!")):
        assert parser.feed(piece) == ([TextDelta(text)] if text else [])


@every_format
def test_pieces_of_a_string_in_json_string_arguments_are_emitted_by_their_feed(form: str) -> None:
    """Arguments encoded as a JSON string are decoded in the same pass. (The arguments of a command begin with a
    brace.)
    """
    if isinstance(FORMATS[form].variants[0].body, Parameters | Expression) or form == "command":
        return
    text, _, _ = reply(form)
    if '\\"' not in text:
        body = text[text.index('{"text"') : text.index("}", text.index('{"text"')) + 1]
        text = text.replace(body, json.dumps(body, ensure_ascii=False))
    start = text.index(VALUE)
    for end, events in every(text, form, TOOLS["without a schema"], 4):
        if end - 4 > start and end <= start + len(VALUE):
            assert events == [ArgumentsDelta(0, text[end - 4 : end])]


@each(
    "text,at",
    [
        ("<tool_call><|channel|>", "<tool_call><|"),
        ("Write <tool_call></function>", "Write <tool_call></"),
        ("<tool_calls></function>", "<tool_calls></f"),
    ],
)
def test_an_opener_waits_for_what_follows_only_while_it_may_be_repeated(text: str, at: str) -> None:
    """The beginning of any other marker shows that the opener is text."""
    parser = Parser({"f": {}})
    events = [parser.feed(char) for char in text]
    opener = text[text.index("<") : text.index(">") + 1]
    assert events[len(at) - 1] == [TextDelta(opener)]
