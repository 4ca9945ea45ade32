"""The commands of a shell call are streamed to the client as the model writes them, and agree with the final item."""

import json
import random
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionShellToolCall, ResponseShellCallCommandDeltaEvent
from support.dialects import said
from support.servers import uvicorn_server
from support.sweeps import each
from support.validators import assert_valid, validate_responses_stream

from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyFinish,
    ReplyStart,
)
from streamtool.middleware import ToolMiddleware
from streamtool.protocols.responses import ReplyWriter, read_request
from streamtool.settings import LimitSettings
from streamtool.testing import ScriptedUpstream

ASKED: dict[str, Any] = {
    "model": "m",
    "input": "Go.",
    "tools": [{"type": "shell", "environment": {"type": "local"}}],
    "stream": True,
}


def writing() -> ReplyWriter:
    conversation = read_request(json.dumps(ASKED).encode(), LimitSettings())
    return ReplyWriter(conversation, id="resp_1", created=1, model="m")


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]


def command_events(data: bytes) -> list[tuple[str, int, str]]:
    """Return the step, index and text of each command event."""
    return [
        (each["type"].rpartition(".")[2], each["command_index"], each.get("delta", each.get("command")))
        for each in events(data)
        if "shell_call_command" in each["type"]
    ]


def called(*pieces: str, complete: bool = True) -> tuple[bytes, dict[str, Any]]:
    """Return the valid stream of a call whose arguments arrive in these pieces, and the item at its end, or {}."""
    writer = writing()
    data = writer.feed([ReplyStart(), ReplyCallStart(0, 0, "call_1", "shell")])
    data += b"".join(writer.feed([ReplyArgumentsDelta(0, 0, piece)]) for piece in pieces)
    data += writer.feed([ReplyCallEnd(0, 0, complete=complete), ReplyFinish(0, Reason.STOP), ReplyEnd()])
    assert_valid(validate_responses_stream(data, ASKED))
    return data, (events(data)[-1]["response"]["output"] or [{}])[0]


def test_each_piece_of_the_arguments_yields_its_part_of_a_command():
    writer = writing()
    writer.feed([ReplyStart(), ReplyCallStart(0, 0, "call_1", "shell")])
    pieces = ['{"timeout_ms": 5, "comm', 'ands": ["ls', " -l\\", 'n", "', 'pwd"], "max', '_output_length": 7}']
    assert [command_events(writer.feed([ReplyArgumentsDelta(0, 0, piece)])) for piece in pieces] == [
        [],
        [("added", 0, ""), ("delta", 0, "ls")],
        [("delta", 0, " -l")],
        [("delta", 0, "\n"), ("done", 0, "ls -l\n"), ("added", 1, "")],
        [("delta", 1, "pwd"), ("done", 1, "pwd")],
        [],
    ]


@each("size", [1, 2, 3, 7, 1000])
@each("plain", [True, False])
@each("commands", [["ls"], ["", 'é 🌡 \\ "q" \x00\n', "]"], ['a, ["b"]', "\ud800 lone"], ["x" * 600, "y"]])
def test_the_commands_do_not_depend_on_the_split(commands: list[str], size: int, plain: bool):
    text = json.dumps({"timeout_ms": None, "commands": commands, "more": {"commands": ["no"]}}, ensure_ascii=plain)
    data, item = called(*(text[at : at + size] for at in range(0, len(text), size)))
    whole = [command.replace("\ud800", "\ufffd") for command in commands]
    assert [text for step, _, text in command_events(data) if step == "done"] == item["action"]["commands"] == whole
    assert item["status"] == "completed"


@pytest.mark.parametrize(
    "arguments", ['{"commands": "ls"}', '{"command": "ls"}', '"ls"', '{"x": {"commands": ["no"]}, "commands": ["ls"]}']
)
def test_commands_of_another_shape_are_sent_before_the_call_ends(arguments):
    data, item = called(*arguments)
    assert [each for each in command_events(data) if each[0] != "delta"] == [("added", 0, ""), ("done", 0, "ls")]
    assert item["action"]["commands"] == ["ls"]


@pytest.mark.parametrize(
    ("arguments", "complete"),
    [
        ('{"commands": ["rm -rf /tmp', False),
        ('{"commands": ["ls", "rm', False),
        ('{"commands": ["ls", 5]}', True),
        ('{"commands": ["ls"], "commands": ["pwd"]}', True),
        ('{"commands": ["ls \\', True),
    ],
)
def test_an_item_with_an_incomplete_command_is_never_done(arguments, complete):
    """Sent deltas cannot be taken back, but the item, which a client would run, does not follow."""
    data, item = called(arguments, complete=complete)
    assert item == {}
    assert b"output_item.done" not in data
    assert command_events(data)


def test_the_buffer_before_the_commands_is_bounded():
    data, item = called('{"commands":', *[" " * 100] * 50, '["ls"]}')
    assert command_events(data) == [("added", 0, ""), ("delta", 0, "ls"), ("done", 0, "ls")]
    assert item["action"]["commands"] == ["ls"]


def test_the_official_client_receives_the_commands():
    commands = ["git status", "printf '%s\\n' \"ä\""]
    call = json.dumps({"name": "shell", "arguments": {"commands": commands}}, ensure_ascii=False)
    upstream = ScriptedUpstream(said("chat", f"Fine.\n<tool_call>\n{call}\n</tool_call>"))
    heard = ["", ""]
    with uvicorn_server(ToolMiddleware(upstream, app_protocol="chat")) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        request = {key: value for key, value in ASKED.items() if key != "stream"}
        with client.responses.stream(**request) as stream:
            for event in stream:
                if isinstance(event, ResponseShellCallCommandDeltaEvent):
                    assert event.output_index == 1
                    heard[event.command_index] += event.delta
            item = stream.get_final_response().output[1]
    assert isinstance(item, ResponseFunctionShellToolCall)
    assert heard == item.action.commands == commands


def damaged(change: str, chance: random.Random) -> list[str]:
    """Return the rules that fire when the stream of a valid call is damaged."""
    data, _ = called('{"commands": ["ls', ' -l", "pwd"]}')
    found = events(data)
    about = [each for each in found if "shell_call_command" in each["type"]]
    match change:
        case "lost":
            found.remove(chance.choice(about))
        case "twice":
            each = chance.choice([each for each in about if not each["type"].endswith("added")])
            found.insert(found.index(each), dict(each))
        case "index":
            chance.choice(about)["command_index"] += 1
        case "text":
            each = chance.choice(about)
            each["delta" if "delta" in each else "command"] += "x"
        case "place":
            chance.choice(about)["output_index"] = 7
    lines = [
        f"event: {each['type']}\ndata: {json.dumps({**each, 'sequence_number': number})}\n\n"
        for number, each in enumerate(found)
    ]
    return sorted({each.rule for each in validate_responses_stream("".join(lines).encode(), ASKED)})


@each("seed", range(8))
@each(("change", "rule"), [("lost", "R7"), ("twice", "R7"), ("index", "R7"), ("text", "R7"), ("place", "R6")])
def test_the_validator_finds_damaged_command_events(change, rule, seed):
    assert rule in damaged(change, random.Random(seed))
