"""Names of native calls that arrive in pieces, repeated, or at once."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.dialects import ALL_CLIENTS, Ask, path, read, write
from support.sweeps import each

from streamtool.core.reply import ReplyArgumentsDelta, ReplyCallEnd
from streamtool.middleware import ToolMiddleware
from streamtool.protocols.chat import ReplyReader
from streamtool.testing import Script, ScriptedUpstream, chunk, stream_asgi
from streamtool.testing.upstream import DONE

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
ASK = Ask((("user", "hi"),), tuple((name, "", SCHEMA) for name in ("get", "get_file", "get_file_list", "ping")))
ARGUMENTS = '{"path": "a"}'

both = pytest.mark.anyio


def fragment(name: Any = ..., arguments: Any = ..., index: int = 0, id: str | None = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not ...}
    return {"index": index, "function": function} | ({"id": id, "type": "function"} if id else {})


def calling(*fragments: dict[str, Any], legacy: bool = False) -> list[bytes]:
    deltas = [{"function_call": one["function"]} if legacy else {"tool_calls": [one]} for one in fragments]
    return [chunk(delta) for delta in deltas]


NAMES: dict[str, tuple[Sequence[dict[str, Any]], list[str]]] = {
    "two pieces": ([fragment("get", id="c"), fragment("_file"), fragment(arguments=ARGUMENTS)], ["get_file"]),
    "empty arguments with each piece": (
        [fragment("get", "", id="c"), fragment("_fi", ""), fragment("le", ""), fragment(None, ARGUMENTS)],
        ["get_file"],
    ),
    "the last piece with arguments": ([fragment("ge", id="c"), fragment("t", ARGUMENTS)], ["get"]),
    "whole, then null": ([fragment("get", "", id="c"), fragment(None, ARGUMENTS)], ["get"]),
    "whole, then empty": ([fragment("get", "", id="c"), fragment("", ARGUMENTS)], ["get"]),
    "the name repeated": ([fragment("get", "", id="c"), fragment("get", ARGUMENTS), fragment("get", "")], ["get"]),
    "the name so far repeated": (
        [fragment("get", id="c"), fragment("get_file"), fragment("get_file", ARGUMENTS)],
        ["get_file"],
    ),
    "without arguments": ([fragment("get", id="c"), fragment("_file")], ["get_file"]),
    "a piece that no tool has": ([fragment("get", id="c"), fragment("_dir"), fragment(arguments="{}")], ["get_dir"]),
    "two calls": (
        [
            fragment("get", id="c"),
            fragment("_file"),
            fragment("get", index=1, id="d"),
            fragment(arguments="{}", index=1),
        ],
        ["get_file", "get"],
    ),
}


@both
@each("case", [*(("chat", case) for case in NAMES), *((client, "two pieces") for client in ALL_CLIENTS)])
@each("legacy", [False, True])
async def test_a_name_is_joined_until_it_is_complete(case: tuple[str, str], legacy: bool):
    client, kind = case
    fragments, expected = NAMES[kind]
    if legacy and len(expected) > 1:
        return
    steps = [*calling(*fragments, legacy=legacy), chunk({}, finish="tool_calls"), DONE]
    app = ToolMiddleware(ScriptedUpstream(Script(tuple(steps))), mode="rescue", app_protocol="chat")
    body = json.dumps(write(client, ASK)).encode()
    async with stream_asgi(app, path(client), body=body) as reply:
        found = read(client, await reply.body(), stream=True)
    assert [part[0] for part in found.parts] == expected
    if "arguments" in fragments[-1]["function"] and fragments[-1]["function"]["arguments"] == ARGUMENTS:
        assert json.loads(found.parts[0][1]) == json.loads(ARGUMENTS)


def between(*deltas: dict[str, Any]) -> list[bytes]:
    """Return a call of `get_file` whose name is interrupted by these deltas."""
    return [*calling(fragment("get", id="c")), *map(chunk, deltas), *calling(fragment("_file", ARGUMENTS))]


def without_index(name: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": ""}}


FILE, FILES = ("get_file", ARGUMENTS), ("get_file_list", ARGUMENTS)
INTERRUPTED: dict[str, tuple[list[bytes], list[Any]]] = {
    "another call, also in pieces": (
        calling(
            fragment("get", id="c"),
            fragment("get_file", index=1, id="d"),
            fragment("_file", ARGUMENTS),
            fragment("_list", ARGUMENTS, index=1),
        ),
        [FILE, FILES],
    ),
    "another call": (between({"tool_calls": [fragment("ping", "{}", index=1, id="d")]}), [FILE, ("ping", "{}")]),
    "reasoning": (between({"reasoning_content": "So."}), [FILE]),
    "blank text": (between({"content": "\n"}), [FILE]),
    "text": (between({"content": "So."}), ["So.", FILE]),
    "blank arguments": (calling(fragment("get", " ", id="c"), fragment("_file", ARGUMENTS)), [FILE]),
    "a namespace": (calling(fragment("functions", id="c"), fragment(".get"), fragment("_file", ARGUMENTS)), [FILE]),
    "without an index": (
        calling(without_index("get"), without_index("_file"), {"function": {"arguments": ARGUMENTS}}),
        [FILE],
    ),
    "another call, and no arguments": (
        calling(fragment("get", id="c"), fragment("ping", index=1, id="d")),
        ["get", "ping"],
    ),
}


@both
@each("client", ALL_CLIENTS)
@each("case", INTERRUPTED)
async def test_a_name_may_continue_until_its_arguments_begin(client: str, case: str):
    deltas, expected = INTERRUPTED[case]
    steps = (*deltas, chunk({}, finish="tool_calls"), DONE)
    app = ToolMiddleware(ScriptedUpstream(Script(steps)), mode="rescue", app_protocol="chat")
    for stream in (True, False):
        body = json.dumps(write(client, Ask(ASK.turns, ASK.tools, stream=stream))).encode()
        async with stream_asgi(app, path(client, stream=stream), body=body) as reply:
            found = read(client, await reply.body(), stream=stream)
        parts = [part for part in found.parts if isinstance(part, tuple) or part.strip()]
        for part, wanted in zip(parts, expected, strict=True):
            if isinstance(wanted, str) and not isinstance(part, str):
                assert part[0] == wanted
            elif isinstance(part, str):
                assert part.strip() == wanted
            else:
                assert (part[0], json.loads(part[1])) == (wanted[0], json.loads(wanted[1]))


NEAR = {
    "Get_File": "get_file",
    "GetFileList": "get_file_list",
    "functions.get_file": "get_file",
    "default_api:ping": "ping",
    "get-file": "get_file",
    "elsewhere": "elsewhere",
    "getfile": "getfile",  # two tools fit
}


@both
@each("client", ALL_CLIENTS)
@each("mode", ["rescue", "auto"])
@each("name", NEAR)
async def test_a_native_name_that_is_nearly_right_is_repaired(client: str, mode: Any, name: str):
    tools = tuple((tool, "", SCHEMA) for tool in ("get", "get_file", "get_file_list", "ping"))
    if NEAR[name] == "getfile":
        tools = (*tools, ("getFile", "", SCHEMA))
    steps = [*calling(fragment(name, "", id="c"), fragment(None, ARGUMENTS)), chunk({}, finish="tool_calls"), DONE]
    records: list[Any] = []
    upstream = ScriptedUpstream(Script(tuple(steps)))
    app = ToolMiddleware(upstream, mode=mode, app_protocol="chat", on_exchange=records.append)
    body = json.dumps(write(client, Ask(ASK.turns, tools))).encode()
    async with stream_asgi(app, path(client), body=body) as reply:
        found = read(client, await reply.body(), stream=True)
    assert [part[0] for part in found.parts] == [NEAR[name]]
    assert ("tool_name" in records[0].repairs) == (NEAR[name] != name)


def announced(*fragments: dict[str, Any]) -> int:
    """Return the number of fragments that had arrived when the call was announced."""
    reader = ReplyReader()
    reader.tool_names = ("get", "get_file", "ping")
    return next(
        i + 1 for i, data in enumerate(calling(*fragments)) if any("CallStart" in repr(e) for e in reader.feed(data))
    )


def test_a_name_is_announced_as_soon_as_it_is_certain():
    assert announced(fragment("ping", "", id="c")) == 1
    assert announced(fragment("get_file", "", id="c")) == 1
    assert announced(fragment("elsewhere", "{", id="c")) == 1
    assert announced(fragment("elsewhere", "", id="c"), fragment(None, "{")) == 2
    assert announced(fragment("get", "{", id="c")) == 1
    assert announced(fragment("get", "", id="c"), fragment("_file", "")) == 2
    assert announced(fragment("get", "", id="c"), fragment(None, "{")) == 2
    assert announced(fragment("get", "", id="c"), fragment("ping", "", index=1, id="d"), fragment(None, "{")) == 3


def grown(*pieces: str) -> list[dict[str, Any]]:
    return [fragment("ping", "", id="c"), *(fragment(None, piece) for piece in pieces)]


CUMULATIVE = {
    "three": (grown('{"path"', '{"path": "a', '{"path": "a"}'), '{"path": "a"}'),
    "from a brace": (grown("{", '{"path": "a"}'), '{"path": "a"}'),
    "many": (grown(*('{"path": "abcdef"}'[:size] for size in range(1, 19))), '{"path": "abcdef"}'),
    "an object like the one around it": (grown('{"a": ', '{"a": 1}', "}"), '{"a": {"a": 1}}'),
    "equal pieces of nested objects": (grown(*['{"a": '] * 4, "1", *["}"] * 4), '{"a": {"a": {"a": {"a": 1}}}}'),
    "equal pieces": (grown('{"path": "', "ab", "ab", "ab", '"}'), '{"path": "ababab"}'),
}


@each("case", CUMULATIVE)
def test_arguments_that_each_delta_repeats(case: str):
    fragments, expected = CUMULATIVE[case]
    reader = ReplyReader()
    reader.tool_names = ("ping",)
    events = [event for data in calling(*fragments) for event in reader.feed(data)]
    events += [*reader.feed(chunk({}, finish="tool_calls")), *reader.close()]
    assert "".join(event.text for event in events if isinstance(event, ReplyArgumentsDelta)) == expected
    assert [event.complete for event in events if isinstance(event, ReplyCallEnd)] == [True]
