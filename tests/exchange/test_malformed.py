"""Markup that never became a call, and calls that cannot be parsed: kept as text, left out, or retried."""

import pytest
from support.dialects import CLIENTS, Ask
from support.scripted_replies import ASK, CALL, CALLED, TOOLS, ModelClient
from support.sweeps import each

from statemachine import Discarded, Parser, TextDelta
from streamtool.settings import Settings

MEANT = '<tool_call>{"name" = ping, 5}</tool_call>'
HALF = "<tool_call>{oh no"
TAG = "The <tool_call> tag opens a call. "
WAITED = '<tool_call>{"name": "ping", "arguments": {"x": 1 : 2}}</tool_call>'

both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)
streamed = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def events(text: str, size: int) -> list[object]:
    parser = Parser(["ping"], malformed="discard")
    out = [event for i in range(0, len(text), size) for event in parser.feed(text[i : i + size])]
    return [*out, *parser.close()]


@each("size", [1, 2, 3, 7, 1000])
@each(
    ("text", "shown", "left_out"),
    [
        (f"So. {MEANT} And on.", "So.  And on.", MEANT.removesuffix("</tool_call>")),
        (f"{HALF}\nNext line.", "", f"{HALF}\nNext line."),
        ("TOOL_CALL: ping\nARGUMENTS: [5\nNext.", "Next.", "TOOL_CALL: ping\nARGUMENTS: [5"),
        ('So. <tool_call>{"arguments": {}}</tool_call> On.', "So.  On.", '<tool_call>{"arguments": {}}'),
        (TAG, TAG, ""),
        ("`<tool_call>{oh no`", "`<tool_call>{oh no`", ""),
        ('{"name": "ping" 5}', '{"name": "ping" 5}', ""),
    ],
    ids=["closed", "open", "line", "no name", "prose", "code", "no marker"],
)
def test_rejected_markup_is_left_out_up_to_its_closer_or_the_end_of_the_line(
    text: str, shown: str, left_out: str, size: int
):
    found = events(text, size)
    assert "".join(event.text for event in found if isinstance(event, TextDelta)).strip() == shown.strip()
    gone = [event for event in found if isinstance(event, Discarded)]
    assert "".join(event.text for event in gone).strip() == left_out
    assert {event.reason for event in gone} <= {"rejected"}


def test_the_option_is_validated():
    with pytest.raises(ValueError, match="malformed must be 'text' or 'discard', not 'retry'"):
        Parser(["ping"], malformed="retry")


@both
@clients
@streamed
async def test_markup_is_text_by_default_and_left_out_on_request(client: str, stream: bool):
    ask = Ask(ASK.turns, TOOLS, stream=stream)
    talk = ModelClient(f"So. {MEANT}\nDone.")
    assert (await talk.ask(client, ask)).parts == (f"So. {MEANT}\nDone.",)
    talk = ModelClient(f"So. {MEANT}\nDone.", settings=Settings(malformed="drop"))
    got = await talk.ask(client, ask)
    assert (got.parts, got.reason) == (("So. \nDone.",), "stop")
    assert talk.records[0].discarded == (("rejected", len(MEANT) - len("</tool_call>")),)


@both
@clients
@streamed
async def test_markup_is_retried_on_request(client: str, stream: bool):
    ask = Ask(ASK.turns, TOOLS, stream=stream)
    talk = ModelClient(MEANT, CALL, settings=Settings(malformed="retry"))
    got = await talk.ask(client, ask)
    assert (got.parts, got.reason, talk.causes) == (CALLED, "calls", ("malformed",))
    assert "could not be read" in talk.last(1)


@both
@clients
@streamed
async def test_after_visible_text_the_reply_continues(client: str, stream: bool):
    talk = ModelClient(f"I ping it now.\n{MEANT}", CALL, settings=Settings(malformed="retry"))
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream=stream))
    assert (got.parts[0].strip(), got.parts[1:], talk.causes) == ("I ping it now.", CALLED, ("malformed",))


@both
@clients
async def test_the_last_attempt_delivers_the_markup(client: str):
    talk = ModelClient(MEANT, settings=Settings(malformed="retry"))
    got = await talk.ask(client, ASK)
    assert "".join(got.parts) == MEANT
    assert (got.reason, talk.causes) == ("stop", ("malformed", "malformed"))


@both
@clients
@streamed
async def test_a_buffered_call_that_cannot_be_parsed_is_retried(client: str, stream: bool):
    talk = ModelClient(WAITED, CALL, settings=Settings(arguments="complete"))
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream=stream))
    assert (got.parts, got.reason, talk.causes) == (CALLED, "calls", ("malformed",))


@both
@clients
@streamed
async def test_a_call_of_a_tool_other_than_the_forced_one_is_retried(client: str, stream: bool):
    other = '<tool_call>{"name": "read_file", "arguments": {}}</tool_call>'
    talk = ModelClient(other, CALL)
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream=stream, choice="ping"))
    assert (got.parts, got.reason, talk.causes) == (CALLED, "calls", ("wrong tool",))
    assert "`ping`" in talk.last(1)


@both
@clients
async def test_delivering_unknown_calls_does_not_disable_a_forced_tool_choice(client: str):
    other = '<tool_call>{"name": "read_file", "arguments": {}}</tool_call>'
    talk = ModelClient(other, CALL, settings=Settings(unknown_tools="deliver"))
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, choice="ping"))
    assert (got.parts, got.reason, talk.causes) == (CALLED, "calls", ("wrong tool",))
