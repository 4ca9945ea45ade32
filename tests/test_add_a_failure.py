"""`docs/loop.md` is true: a class of failures is a row and a detector, and everything else follows from them."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from dialects import CLIENTS, Ask
from test_retries import ASK, CALL, CALLED, TOOLS, ModelClient

from streamtool.observe.logs import fields, log
from streamtool.policy import FAILURES, EndOfReply, Failure, Outcome, find, register
from streamtool.settings import Settings

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "loop.md").read_text("utf-8")
CODE = re.search(r"```python\n(.*?\nregister\(\w+\)\n)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
OPEN = "Here it is:\n```python\nprint(1)"
REST = "\n```\nThat is all."
CORRECTION = "Your reply ended inside a code block. Go on where it ended, and close the block."

both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)
streamed = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture
def row() -> Iterator[Failure[Any]]:
    """The class of the page, registered as the page does it."""
    before = list(FAILURES)
    names: dict[str, Any] = {}
    exec(CODE, names)
    yield names["OPEN_BLOCK"]
    FAILURES[:] = before


@both
@clients
@streamed
async def test_it_is_asked_for_again_and_corrected(row: Failure[Any], client: str, stream: bool) -> None:
    talk = ModelClient(OPEN, REST)
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream))
    assert ("".join(got.parts), got.reason) == (f"{OPEN}{REST}", "stop")
    assert talk.causes == ("open code block",)
    assert talk.records[0].unmet is None
    second = talk.upstream.requests[1].json["messages"]
    assert second[-2] == {"role": "assistant", "content": OPEN}
    assert second[-1]["content"].endswith(CORRECTION)  # no way out is left to it, since no call is demanded


@both
async def test_attempts_are_bounded_and_the_record_and_the_log_name_it(
    row: Failure[Any], caplog: pytest.LogCaptureFixture
) -> None:
    talk = ModelClient(OPEN, " and\n```\n```", settings=Settings(retries=1))
    await talk.ask("chat", ASK)
    (record,) = talk.records
    assert (record.attempts, record.unmet, record.outcome) == (("open code block",), "open code block", "unmet")
    with caplog.at_level(logging.INFO, "streamtool.exchange"):
        log(record)
    assert caplog.messages[-1].startswith(
        "m: tools 2, calls 0, not accepted: open code block, lacks in the end: open code block"
    )
    assert fields(record)["attempts"][0]["reason"] == fields(record)["unmet"] == "open code block"


@both
async def test_other_replies_are_what_they_were(row: Failure[Any]) -> None:
    closed = f"{OPEN}{REST}"
    assert ((await (talk := ModelClient(closed)).ask("chat", ASK)).parts, talk.causes) == ((closed,), ())
    assert ((await (talk := ModelClient(CALL)).ask("chat", ASK)).parts, talk.causes) == (CALLED, ())


@both
async def test_without_it_the_reply_is_accepted() -> None:
    talk = ModelClient(OPEN)
    assert ((await talk.ask("chat", ASK)).parts, talk.causes) == ((OPEN,), ())


def test_a_row_that_contradicts_itself_is_refused(row: Failure[Any]) -> None:
    with pytest.raises(ValueError, match='"open code block" is already detected on EndOfReply'):
        register(row)
    with pytest.raises(ValueError, match='"speechless" is continued, and needs at least one correction'):
        register(attrs.evolve(row, cause="speechless", corrections=()))
    assert len([failure for failure in FAILURES if failure.on is EndOfReply and failure is row]) == 1


@pytest.mark.parametrize(
    ("outcome", "visible", "found"),
    [
        (Outcome.RETRIED, False, True),
        (Outcome.RETRIED, True, False),
        (Outcome.CONTINUED, False, False),
        (Outcome.CONTINUED, True, True),
        (Outcome.EITHER, False, True),
        (Outcome.EITHER, True, True),
        (Outcome.DELIVERED, True, True),
    ],
)
def test_what_becomes_of_an_attempt_says_when_it_can_fail(
    row: Failure[Any], monkeypatch: pytest.MonkeyPatch, outcome: Outcome, visible: bool, found: bool
) -> None:
    from streamtool.conversation import Conversation
    from streamtool.policy import rules_for

    monkeypatch.setattr("streamtool.policy.failures.FAILURES", [attrs.evolve(row, outcome=outcome)])
    end = EndOfReply(
        visible=visible,
        rules=rules_for(Conversation(protocol="chat", model="m", messages=()), Settings()),
        text="```",
        calls=0,
        refused=0,
        unread=0,
        incomplete=False,
        stopped=False,
    )
    assert (find(end) is not None) == found
