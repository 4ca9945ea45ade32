"""A class of failures is a row and a detector, as `docs/when-the-model-does-not-call.md` describes."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from support.dialects import CLIENTS, Ask
from support.scripted_replies import ASK, CALL, CALLED, TOOLS, ModelClient

from streamtool.observe.logs import fields, log_exchange
from streamtool.policy import FAILURES, EndOfReply, Failure, Outcome, find, register
from streamtool.settings import Settings

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "when-the-model-does-not-call.md").read_text("utf-8")
CODE = re.search(r"```python\n(.*?\nregister\(\w+\)\n)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
OPEN = "Here it is:\n```python\nprint(1)"
REST = "\n```\nThat is all."
CORRECTION = "Your reply ended inside a code block. Go on where it ended, and close the block."

both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)
streamed = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture
def row() -> Iterator[Failure[Any]]:
    """Return the class on the page, registered as the page does it."""
    before = list(FAILURES)
    names: dict[str, Any] = {}
    exec(CODE, names)
    yield names["OPEN_BLOCK"]
    FAILURES[:] = before


@both
@clients
@streamed
async def test_the_failure_is_retried_with_a_correction(row: Failure[Any], client: str, stream: bool) -> None:
    talk = ModelClient(OPEN, REST)
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream))
    assert ("".join(got.parts), got.reason) == (f"{OPEN}{REST}", "stop")
    assert talk.causes == ("open code block",)
    assert talk.records[0].unmet is None
    second = talk.upstream.requests[1].json["messages"]
    assert second[-2] == {"role": "assistant", "content": OPEN}
    assert second[-1]["content"].endswith(CORRECTION)  # offers no way out, since no call is required


@both
async def test_attempts_are_bounded_and_the_record_and_the_log_name_the_failure(
    row: Failure[Any], caplog: pytest.LogCaptureFixture
) -> None:
    talk = ModelClient(OPEN, " and\n```\n```", settings=Settings(retries=1))
    await talk.ask("chat", ASK)
    (record,) = talk.records
    assert (record.attempts, record.unmet, record.outcome) == (("open code block",), "open code block", "unmet")
    with caplog.at_level(logging.INFO, "streamtool.exchange"):
        log_exchange(record)
    assert caplog.messages[-1].startswith(
        "m: tools 2, calls 0, not accepted: open code block, delivered despite: open code block"
    )
    assert fields(record)["attempts"][0]["reason"] == fields(record)["unmet"] == "open code block"


@both
async def test_other_replies_are_unaffected(row: Failure[Any]) -> None:
    closed = f"{OPEN}{REST}"
    assert ((await (talk := ModelClient(closed)).ask("chat", ASK)).parts, talk.causes) == ((closed,), ())
    assert ((await (talk := ModelClient(CALL)).ask("chat", ASK)).parts, talk.causes) == (CALLED, ())


@both
async def test_without_the_row_the_reply_is_accepted() -> None:
    talk = ModelClient(OPEN)
    assert ((await talk.ask("chat", ASK)).parts, talk.causes) == ((OPEN,), ())


def test_a_contradictory_row_is_rejected(row: Failure[Any]) -> None:
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
def test_the_outcome_of_a_class_determines_when_it_applies(
    row: Failure[Any], monkeypatch: pytest.MonkeyPatch, outcome: Outcome, visible: bool, found: bool
) -> None:
    from streamtool.core.conversation import Conversation
    from streamtool.forcing import rules_for

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
