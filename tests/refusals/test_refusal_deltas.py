"""The cost of refusal detection for an answer: no byte changes, and only a possible refusal is delayed.

Every reply of the corpus that is neither a denial nor an announcement (in protocols other than Chat Completions, every
fourth) is sent through the complete middleware twice: with `refusals = "retry"` and with `"pass"`. The client receives
the same events, with the same bytes and the same boundaries. Some of the first ones may arrive together, in the write
that rules out a denial.
"""

import json
import statistics
from itertools import count
from typing import Any

import anyio
import pytest
from attrs import frozen
from support.dialects import CLIENTS, PATHS, Ask, events, said, write
from support.refusal_corpus import NEGATIVES, ROOT

from streamtool import middleware
from streamtool.middleware import ToolMiddleware
from streamtool.refusals.opening import HELD
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, stream_asgi

SIZE = 4
"""Characters per piece of the upstream's stream."""
TOOLS = (("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),)
ASK = Ask((("user", "Go on."),), TOOLS)


@frozen
class Found:
    """A reply that was received twice."""

    text: str
    plain: list[bytes]
    """The client's writes without detection."""
    watched: list[bytes]
    """The client's writes with detection."""
    client: str

    @property
    def waited(self) -> int:
        """Number of characters that arrived in one write although the upstream sent them in several pieces."""
        if self.watched == self.plain:
            return 0
        together = next(new for new, old in zip(self.watched, self.plain, strict=False) if new != old)
        return sum(map(len, texts(self.client, together)))


def texts(client: str, data: bytes) -> list[str]:
    """Return the text deltas in a write."""
    found: list[str] = []
    for event in events(data):
        match client, event:
            case "chat", {"choices": [{"delta": {"content": str(text)}}]}:
                found.append(text)
            case "messages", {"type": "content_block_delta", "delta": {"text": text}}:
                found.append(text)
            case "responses", {"type": "response.output_text.delta", "delta": text}:
                found.append(text)
    return found


async def received(client: str, text: str, refusals: Any) -> list[bytes]:
    """Return the writes that the client receives; ids are sequential, and the clock is fixed."""
    numbers = count()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(middleware, "new_id", lambda prefix: f"{prefix}{next(numbers):024}")
        patched.setattr(middleware.time, "time", lambda: 1700000000.0)
        app = ToolMiddleware(
            ScriptedUpstream(said("chat", text, size=SIZE)), settings=Settings(refusals=refusals), app_protocol="chat"
        )
        async with stream_asgi(app, PATHS[client], body=json.dumps(write(client, ASK)).encode()) as reply:
            return [piece async for piece in reply]


@pytest.fixture(scope="module", params=CLIENTS)
def found(request: pytest.FixtureRequest) -> list[Found]:
    """Return both runs of every reply."""

    async def all_of_them() -> list[Found]:
        client = request.param
        return [
            Found(text, await received(client, text, "pass"), await received(client, text, "retry"), client)
            for text in NEGATIVES[:: 1 if client == "chat" else 4]
        ]

    return anyio.run(all_of_them)


def test_an_answer_has_the_same_events_with_and_without_detection(found: list[Found]):
    for one in found:
        assert b"".join(one.watched) == b"".join(one.plain), one.text
        assert "".join(texts(one.client, b"".join(one.plain))) == one.text


def test_only_the_first_words_may_arrive_together(found: list[Found]):
    for one in found:
        most = len(one.plain) - len(one.watched)
        same = next((i for i, pair in enumerate(zip(one.watched, one.plain, strict=False)) if pair[0] != pair[1]), 0)
        assert one.watched == [*one.plain[:same], *joined(one.plain[same:], most)], one.text
        assert one.waited <= HELD + SIZE


def joined(writes: list[bytes], most: int) -> list[bytes]:
    """Return the writes with the first one and `most` further ones joined."""
    return [b"".join(writes[: most + 1]), *writes[most + 1 :]] if most else writes


@pytest.mark.parametrize("found", ["chat"], indirect=True)
def test_the_figures_in_the_docs_are_current(found: list[Found]):
    page = " ".join((ROOT / "docs" / "when-the-model-does-not-call.md").read_text(encoding="utf-8").split())
    some = [one.waited for one in found if one.waited]
    none = len(found) - len(some)
    assert f"the {len(found)} corpus replies that are neither" in page
    assert f"streamed in pieces of {SIZE} characters" in page
    assert f"{none / len(found):.0%} are not buffered at all;" in page
    assert f"a median of {statistics.median(some):.0f} and at most {max(some)} characters" in page
