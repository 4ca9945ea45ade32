"""The cost of a request is linear in its bytes, whatever its content.

Measured as a ratio, so that a busy machine does not matter: the same work at one size and at four times that size, in
interleaved runs, taking the smallest time of each. Linear work takes four times as long, quadratic work sixteen times.
"""

import gc
import itertools
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.dialects import ALL_CLIENTS, CLIENTS, Ask, said, write
from support.sweeps import each

from streamtool.exchange.exchange import Exchange
from streamtool.filters.quoted_sources import quotation_sources
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import hostile

TIMES = 4
"""Factor between the two sizes."""
ALLOWED = 8
"""Maximum factor between the two times."""
ROUNDS = 30
"""How often a bad measurement is repeated."""
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
WAYS: dict[str, dict[str, Any]] = {
    **{style: {"schema": style} for style in ("compact", "json", "markdown")},
    **{way: {"app_forcing": way} for way in ("schema", "guided", "structural_tag", "grammar")},
    "marked parameters": {"app_forcing": "grammar", "format": "qwen3_coder"},
}
"""Settings by how a schema is used."""


def growth(prepare: Callable[[int], Callable[[], object]], size: int, allowed: float = ALLOWED) -> float:
    """Return the ratio of the prepared work's times at `TIMES` the size and at the given size."""
    runs = {length: prepare(length) for length in (size, TIMES * size)}
    best = dict.fromkeys(runs, float("inf"))
    gc.disable()  # with the objects of the whole suite a collection would cost more than the measured work
    try:
        for _ in range(ROUNDS):
            for length, run in runs.items():
                began = time.thread_time()
                run()
                best[length] = min(best[length], time.thread_time() - began)
            if best[TIMES * size] < allowed * best[size]:
                break
    finally:
        gc.enable()
    return best[TIMES * size] / best[size]


def exchange(body: bytes, client: str = "chat", **settings: Any) -> Exchange:
    """Return the exchange of a request whose first upstream request has been made."""
    numbers = itertools.count()
    made = Exchange(
        Settings(app_protocol="chat", **settings),
        client_protocol(client),
        body,
        (),
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        now=0,
    )
    made.request()
    return made


def asked(parameters: Any, settings: dict[str, Any]) -> Callable[[], Exchange]:
    """Request a call of the only tool, whose description differs each time."""
    numbers = itertools.count()
    body = json.dumps(write("chat", Ask((("user", "Go."),), (("f", "Is number _", parameters),), choice="required")))
    return lambda: exchange(body.replace("number _", f"number {next(numbers)}", 1).encode(), **settings)


# --- schemas


def all_required(size: int) -> Any:
    names = [f"p{i}" for i in range(size)]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}


def required_undeclared(size: int) -> Any:
    return {"type": "object", "properties": {"a": {"type": "string"}}, "required": [f"p{i}" for i in range(size)]}


def one_of_many_values(size: int) -> Any:
    return {"type": "object", "properties": {"x": {"anyOf": [{"enum": [f"v{i}"]} for i in range(size)]}}}


def referring(size: int, part: Any, **beside: Any) -> Any:
    """Return a tool with as many members, which are all required and refer to one part."""
    names = [f"p{i}" for i in range(size)]
    members = {name: {"$ref": "#/$defs/d", **beside} for name in names}
    return {"type": "object", "properties": members, "required": names, "$defs": {"d": part}}


SCHEMAS: dict[str, Callable[[int], Any]] = {
    "references to many parts that are merged": lambda size: referring(
        size, {"allOf": [{"properties": {f"q{i}": {"type": "string"}}} for i in range(size)]}
    ),
    "many parts that are merged": lambda size: {
        "type": "object",
        "allOf": [{"properties": {f"q{i}.{j}": {} for j in range(5)}} for i in range(size)],
    },
    "references to a large object": lambda size: referring(size, {f"k{i}": i for i in range(size)}, title="x"),
    "references to an object with all members required": lambda size: referring(size, all_required(size)),
    "references to many values": lambda size: referring(size, {"enum": [f"v{i}" for i in range(size)]}),
    "references to many values with a word beside": lambda size: referring(
        size, {"enum": [f"v{i}" for i in range(size)]}, title="x"
    ),
    "references to many alternatives with a word beside": lambda size: referring(
        size, {"oneOf": [{"enum": [f"v{i}"]} for i in range(size)]}, title="x"
    ),
    "references with a word beside to required members": lambda size: referring(
        size, all_required(size), description="x"
    ),
    "references with a word beside to many types": lambda size: referring(
        size, {"type": [f"t{i}" for i in range(size)]}, description="x"
    ),
    "the same names are required again and again": lambda size: {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/d", "title": "x"}] * size,
        "$defs": {"d": all_required(size)},
    },
    "references to a long value": lambda size: referring(size, {"const": "v" * 20 * size}),
    "references to a long default": lambda size: referring(size, {"default": "v" * 20 * size}),
    "references to a long description": lambda size: referring(size, {"description": "v " * 10 * size}),
    "all members are required": all_required,
    "required members that are not declared": required_undeclared,
    "alternatives of one value": one_of_many_values,
}


@each("way", WAYS)
@each("kind", SCHEMAS)
def test_the_cost_of_a_schema_is_linear(kind: str, way: str) -> None:
    assert growth(lambda size: asked(SCHEMAS[kind](size), WAYS[way]), 120) < ALLOWED


# --- calls and results


def answered(size: int) -> tuple[Any, ...]:
    calls = [("call", f"c{i}", "f", {}) for i in range(size)]
    return (("user", "Go."), *calls, *(("result", f"c{i}", "ok") for i in range(size)))


def answered_backwards(size: int) -> tuple[Any, ...]:
    question, *rest = answered(size)
    return (question, *rest[:size], *reversed(rest[size:]))


def interrupted(size: int) -> tuple[Any, ...]:
    return (*answered(size)[: size + 1], ("user", "Never mind."))


HISTORIES: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "calls and results": answered,
    "results in the opposite order": answered_backwards,
    "interrupted calls": interrupted,
    "many messages of the system": lambda size: (*[("system", "Be brief.")] * size, ("user", "Go.")),
    "many messages of the user": lambda size: (("user", "Go."),) * size,
    "many messages of the assistant": lambda size: (("user", "Go."), *[("assistant", "I go.")] * size, ("user", "Go.")),
}
TOOLS = (("f", "Does it.", EMPTY),)


@each("roles", ["free", "strict"])
@each("client", CLIENTS)
@each("kind", HISTORIES)
def test_the_cost_of_a_history_is_linear(kind: str, client: str, roles: str) -> None:
    def prepare(size: int) -> Callable[[], object]:
        body = json.dumps(write(client, Ask(HISTORIES[kind](size), TOOLS))).encode()
        return lambda: exchange(body, client, roles=roles)

    assert growth(prepare, 500) < ALLOWED


# --- texts searched for quoted calls

NESTED = tuple(("a" * length, "Does it.", EMPTY) for length in range(1, 65))
"""Tools whose names are each contained in the next one."""
QUOTED: dict[str, Callable[[int], str]] = {
    "names in a longer word": lambda size: ("x" + "a" * 65 + "(") * size,
    "one word of many names": lambda size: "a" * 65 * size + "(",
    "names before blanks": lambda size: ("xa" + " " * 64) * size,
    "names before escapes": lambda size: ("xa" + "\\ " * 32) * size,
}


@pytest.mark.parametrize("kind", QUOTED)
def test_the_cost_of_the_search_for_quotations_is_linear(kind: str) -> None:
    def prepare(size: int) -> Callable[[], object]:
        body = json.dumps(write("chat", Ask((("user", QUOTED[kind](size)),), NESTED))).encode()
        return lambda: exchange(body)

    assert growth(prepare, 500) < ALLOWED


@pytest.mark.parametrize("kind", QUOTED)
def test_the_search_for_quotations_hardly_costs_more_for_names_in_names(kind: str) -> None:
    conversation = exchange(
        json.dumps(write("chat", Ask((("user", QUOTED[kind](2000)),), NESTED))).encode()
    ).conversation

    def prepare(size: int) -> Callable[[], object]:
        names = [name for name, _, _ in NESTED[: 16 * size]]
        return lambda: quotation_sources(conversation, names)

    assert growth(prepare, 1, 3) < 3


# --- replies of the upstream

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
REPLIES: dict[str, str] = {
    "calls": CALL,
    "calls between words": f"a {CALL}",
    "unknown calls": CALL.replace('"f"', '"g"'),
    "calls that break off": '<tool_call>{"name": "f", "arguments": {"a": {"b": 1</tool_call>\n',
    "openers": "<tool_call>",
    "objects that are no calls": '{"a": {"b": [1]}}',
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", REPLIES)
def test_the_cost_of_one_delta_is_linear(kind: str, client: str) -> None:
    body = json.dumps(write(client, Ask((("user", "Go."),), TOOLS))).encode()

    def prepare(size: int) -> Callable[[], object]:
        text = REPLIES[kind] * size
        steps = [step for step in said("chat", text, size=len(text)).steps if isinstance(step, bytes)]

        def run() -> None:
            made = exchange(body, client, refusals="pass")
            made.respond(200, ((b"content-type", b"text/event-stream"),))
            for step in steps:
                made.feed(step)
            made.close()
            made.remember()

        return run

    assert growth(prepare, 150) < ALLOWED


# --- memory


def test_large_lists_of_tools_are_not_retained() -> None:
    """As objects they take several times as much space as their text, for the life of the process."""
    bodies = [
        json.dumps(write("chat", Ask((("user", "Go."),), (("f", f"Number {number}.", all_required(12_000)),)))).encode()
        for number in range(3)
    ]
    exchange(bodies[0])
    tracemalloc.start()
    try:
        for body in bodies[1:]:
            exchange(body)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < len(bodies[0])


# --- random requests


@pytest.mark.parametrize("kind", range(len(hostile.KINDS)), ids=hostile.KINDS)
def test_the_cost_of_random_hostile_requests_is_linear(kind: int) -> None:
    """Ten seeds of each kind, all steps of the exchange together; the worst growth decides."""
    for seed in range(kind, 10 * len(hostile.KINDS), len(hostile.KINDS)):
        client = ALL_CLIENTS[seed // len(hostile.KINDS) % len(ALL_CLIENTS)]
        numbers = itertools.count()

        def prepare(size: int, client: str = client, seed: int = seed, numbers: Any = numbers) -> Callable[[], object]:
            return lambda: list(hostile.timed(client, seed, size, f"Number {next(numbers)}."))

        assert growth(prepare, 4096) < ALLOWED, (client, seed)
