"""The memory of inspected exchanges: the parts that are kept, counted and freed."""

import gc
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import Any
from weakref import ref

import pytest

from streamtool.core.errors import UpstreamError
from streamtool.exchange.inputs import INPUT_OVERHEAD, RecordedExchange
from streamtool.exchange.interfaces import NO_SERVICES, Services
from streamtool.observe import ring as module
from streamtool.observe.ring import InspectedExchange, Ring
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
DENIED = "I'm sorry, but I don't have access to any tools in this conversation."
MUCH = 2**30


def exchange(
    said: str = "x",
    services: Services = NO_SERVICES,
    **options: Any,
) -> RecordedExchange:
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": said}], "tools": [TOOL]}
    settings = Settings(**{"app_protocol": "chat", **options})
    numbers = count()
    wire, body = client_protocol("chat", "/v1/chat/completions"), json.dumps(asked).encode()
    return RecordedExchange(
        settings,
        wire,
        body,
        (),
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        now=1,
        time=monotonic,
        services=services,
    )


def begun(ring: Ring, said: str = "x", **given: Any) -> tuple[RecordedExchange, InspectedExchange]:
    one = exchange(said, **given)
    found = ring.begin(one, "")
    one.request()
    one.respond(200, ())
    return one, found


def delta(text: str, end: str | None = None) -> bytes:
    return (
        b"data: %b\n\n"
        % json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}]}).encode()
    )


def types(ring: Ring, id: str = "1") -> list[Any]:
    return [line["type"] for line in ring.lines(id)]


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the collector of cycles, which does not search old objects in a server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["deleted", "cut", "viewed", "viewed while open", "too many"])
def test_exchanges_that_leave_the_ring_are_freed_without_a_search_for_cycles(way: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_EXCHANGES", 1 if way == "too many" else 10)
    with uncollected():
        ring = Ring(MUCH, contents=True)
        one, found = begun(ring)
        one.feed(delta("Well, "))
        logs = ref(one.log)
        if way == "viewed while open":
            assert "text" in types(ring)
        if way != "cut":
            found.end(one, one.record())
        if way == "viewed":
            assert "text" in types(ring)
        one.release()
        del one, found
        if way == "too many":
            begun(ring)
        elif way == "cut":
            ring.exchanges.pop("1").cut()
        else:
            ring.left = -1
            ring.make_room()
            assert not ring.exchanges
        assert logs() is None


class Refused(UpstreamError):
    def __init__(self, status: int) -> None:
        super().__init__("it broke", code="c")
        self.status = status


def fail(key: str) -> None:
    try:
        int(key)
    except ValueError as error:
        raise Refused(429) from error


def test_a_recorded_error_has_no_traceback():
    one, _ = begun(Ring(MUCH, contents=True), resume=0)
    with pytest.raises(UpstreamError) as raised:
        fail("secret")
    one.fail(raised.value)
    *_, error = one.log.inputs
    assert type(error) is Refused
    assert (error.message, error.status, error.code) == ("it broke", 429, "c")
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


def test_a_cut_exchange_keeps_nothing_and_counts_its_attempts():
    ring = Ring(100_000, contents=True)
    one, found = begun(ring, "x" * 20_000, retries=2)
    one.feed(delta('<tool_call>{"name": "f", "arguments": {"a": "' + "y" * 500_000), long=True)
    assert types(ring) == ["exchange", "cut"]
    assert ring.left == ring.size - found.size
    one, found = begun(ring, "x" * 100_000, retries=2)
    for _ in range(2):
        one.feed(delta(DENIED, "stop") + b"data: [DONE]\n\n")
        one.close()
        assert one.retry
        one.request()
        one.respond(200, ())
    assert types(ring, "2") == ["exchange", "cut"]
    assert ring.summary("2")["attempts"] == 3
    log = one.log
    assert not (log.inputs or log.requests or log.answers)
    one, found = begun(ring, "x" * 20_000, retries=2)
    one.feed(delta("word "))
    found.cut()
    for _ in range(1_000):
        one.feed(delta("word "))
    assert not one.log.entries


@pytest.mark.parametrize("end", ["", "}}</tool_call>", '}}</tool_call><tool_call>{"name": "f", "arguments": {"b": 2'])
def test_the_first_call_is_shown_whether_it_has_ended_or_not(end: str):
    ring = Ring(MUCH, contents=True)
    one, found = begun(ring)
    one.feed(delta('<tool_call>{"name": "f", "arguments": {"a": 1'))
    one.feed(delta(end)) if end else None
    found.end(one, one.record())
    assert ring.summary("1")["called"] == ('f({"a": 1})' if end else 'f({"a": 1)')


def test_a_request_that_is_only_made_ready_is_not_an_attempt():
    ring = Ring(MUCH, contents=True)
    one = exchange()
    one.make_ready()
    ring.begin(one, "")
    assert ring.summary("1")["attempts"] == 0
    one.request()
    assert ring.summary("1")["attempts"] == 1


def test_repetitions_are_counted_and_dropped_first():
    ring = Ring(MUCH, contents=True)
    one, found = begun(ring)
    for _ in range(300):
        one.feed(delta("word "))
    types(ring)
    types(ring)
    tracemalloc.start()
    before = ring.left
    for _ in range(2_000):
        one.feed(delta("word "))
    found.settle()
    alone = before - ring.left
    taken = tracemalloc.get_traced_memory()[0]
    types(ring)
    more = tracemalloc.get_traced_memory()[0] - taken
    tracemalloc.stop()
    assert alone > 0
    assert found.size > 0.6 * more
    assert ring.left == ring.size - found.size
    ring.left = -1
    ring.make_room()
    assert list(ring.exchanges) == ["1"]
    assert not ring._repetitions
    assert ring.left > 0


def test_deltas_are_counted():
    ring = Ring(MUCH, contents=True)
    one, _ = begun(ring)
    data, before = delta("word "), ring.left
    for _ in range(640):
        one.feed(data)
    assert before - ring.left == 640 * (len(data) + INPUT_OVERHEAD)


@pytest.mark.parametrize("way", ["end", "cut"])
def test_a_repetition_is_dropped_with_its_exchange(way: str):
    ring = Ring(MUCH, contents=True)
    one, found = begun(ring)
    types(ring)
    assert found in ring._repetitions
    if way == "end":
        found.end(one, one.record())
    else:
        found.cut()
    assert not ring._repetitions
    assert ring.left == ring.size - found.size


@pytest.mark.parametrize("ended", [False, True])
def test_an_exchange_that_is_cut_during_a_view_is_not_reported(ended: bool, monkeypatch: pytest.MonkeyPatch):
    ring = Ring(MUCH, contents=True)
    one, found = begun(ring)
    one.feed(delta("Well, "))
    if ended:
        found.end(one, one.record())
    catch_up = module.Repetition.catch_up

    def cutting(self: Any) -> None:
        found.cut()
        catch_up(self)

    monkeypatch.setattr(module.Repetition, "catch_up", cutting)
    assert types(ring)[-2:] == (["cut", "record"] if ended else ["exchange", "cut"])
    assert not ring._repetitions


def test_an_exchange_that_was_deleted_meanwhile_is_not_deducted():
    ring = Ring(MUCH, contents=True)
    one, found = begun(ring)
    found.end(one, one.record())
    ring.left = -1
    ring.make_room()
    left = ring.left
    found.settle()
    ring._delete(found)
    assert ring.left == left


def test_a_ring_that_replaces_another_counts_what_its_exchanges_add():
    before, ring = Ring(MUCH, contents=True), Ring(MUCH, contents=True)
    one, found = begun(before)
    types(before)
    ring.add_exchanges_of(before)
    one.feed(delta("x" * 50_000))
    assert "text" in types(ring)
    found.end(one, one.record())
    assert ring.left == ring.size - found.size


class Live:
    """Services whose answers change."""

    unstored = None

    def __init__(self) -> None:
        self.reads = 0
        self.count = len

    def of(self, _: Any) -> Any:
        self.reads += 1
        return self.count

    def recall(self, _: str) -> None:
        self.reads += 1

    demand = recall

    def remember(self, _: str, __: bytes) -> None:
        """Do nothing."""


def test_a_repetition_uses_no_services():
    live, ring = Live(), Ring(MUCH, contents=True)
    one, found = begun(ring, services=Services(store=live, tokenizers=live), app_protocol="completions")  # type: ignore[arg-type]
    for word in ("The", "quick", "brown", "fox", "jumps", "over"):
        one.feed(b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "text": f"{word} "}]}).encode())
    one.fail(UpstreamError("the connection broke"))
    assert one.retry
    found.end(one, one.record())
    assert live.reads
    live.reads, live.count = 0, lambda _: 1
    assert types(ring)[-1] == "record"
    assert "differs" not in types(ring)
    assert not live.reads
