"""Tools defined only by their type: how they are offered to the model, and how its calls are returned.

The official SDKs define the types and the shape of their calls.
"""

import contextlib
import json
import typing
from typing import Annotated, Any

import anthropic
import anthropic.types as claude
import openai
import openai.types.responses as gpt
import pytest
import typing_extensions
from anthropic.types import beta
from attrs import field, frozen
from openai.types.chat import ChatCompletionToolUnionParam
from openai.types.responses.response_output_item import ResponseOutputItem
from pydantic import TypeAdapter
from support.dialects import said
from support.servers import uvicorn_server
from support.sweeps import each
from support.validators import (
    assert_valid,
    validate_messages_stream,
    validate_responses_stream,
    validate_responses_whole,
)
from support.validators.responses_typed import fits

from streamtool.core.errors import StreamtoolError
from streamtool.core.reply import ReplyArgumentsDelta, ReplyCallStart, ReplyStart
from streamtool.middleware import ToolMiddleware
from streamtool.protocols import messages as messages_protocol
from streamtool.protocols.messages.toolsets import TOOLSETS
from streamtool.protocols.messages.typed_tools import BLOCKS, tools_of
from streamtool.protocols.messages.typed_tools import TYPED_TOOLS as MESSAGES
from streamtool.protocols.responses import ReplyWriter, read_request
from streamtool.protocols.responses.typed_calls import FORMATS_BY_ITEM, FORMATS_BY_TOOL, TYPED_RESULTS
from streamtool.protocols.responses.typed_tools import ITEMS
from streamtool.protocols.responses.typed_tools import TYPED_TOOLS as RESPONSES
from streamtool.protocols.shared.typed_tools import row_of
from streamtool.settings import LimitSettings
from streamtool.testing import Script, ScriptedUpstream, stream_asgi

both = pytest.mark.anyio
MEMBERS = {
    "browser": TypeAdapter(claude.BrowserToolUseBlock),
    "computer": TypeAdapter(claude.ComputerToolUseBlock),
}


def kinds(union: Any) -> set[str]:
    """Return the values of `type` in the members of a union."""
    origin = typing.get_origin(union)
    if origin is Annotated:
        return kinds(typing.get_args(union)[0])
    if origin is typing.Union:
        return {kind for member in typing.get_args(union) for kind in kinds(member)}
    fields = getattr(union, "model_fields", None)
    value = fields["type"].annotation if fields else typing_extensions.get_type_hints(union)["type"]
    while typing.get_origin(value) not in (typing.Literal, typing_extensions.Literal):
        value = typing.get_args(value)[0]
    return set(typing.get_args(value))


def sample(schema: Any, *, whole: bool = False) -> Any:
    """Return a value that fits the schema; with `whole`, including all optional members."""
    match schema:
        case {"const": value} | {"enum": [value, *_]} | {"anyOf": [{"const": value}, *_]}:
            return value
        case {"anyOf": [first, *_]}:
            return sample(first, whole=whole)
        case {"type": "object", "properties": properties}:
            names = properties if whole else schema.get("required", ())
            return {name: sample(properties[name], whole=whole) for name in names}
        case {"type": "array", "items": items}:
            return [sample(items, whole=whole)] * 2
        case {"type": "integer"}:
            return 7
        case {"type": "number"}:
            return 1.5
        case {"type": "boolean"}:
            return True
        case {"type": "object"}:
            return {}
    return "text"


def calling(name: str, arguments: Any) -> str:
    return f'Fine.\n<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def everything(upstream: ScriptedUpstream) -> str:
    """Return the prompt sent to the model."""
    return json.dumps(upstream.requests[-1].json, ensure_ascii=False)


# --- Messages ---------------------------------------------------------------------------------------------------------

CLIENTS_OWN = sorted(
    kind for kind in kinds(beta.BetaToolUnionParam) if (row := row_of(MESSAGES, kind)) is not None and row.offer
)
OFFERED = [
    (kind, tool.name, sample(tool.parameters, whole=whole))
    for kind in CLIENTS_OWN
    for tool in tools_of(kind, {})
    for whole in (False, True)
]


def asking(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "Go."}],
        "tools": [{"type": kind} if "toolset" in kind else {"type": kind, "name": tools_of(kind, {})[0].name}],
        **more,
    }


@pytest.mark.parametrize("union", [claude.ToolUnionParam, beta.BetaToolUnionParam])
def test_every_tool_type_in_the_sdk_has_a_row(union):
    assert [kind for kind in sorted(kinds(union) - {"custom"}) if row_of(MESSAGES, kind) is None] == []


@pytest.mark.parametrize(
    "union", [claude.ContentBlockParam, beta.BetaContentBlockParam, claude.ContentBlock, beta.BetaContentBlock]
)
def test_every_block_type_of_messages_is_in_the_tables(union):
    named = {*BLOCKS, *(row.call for row in MESSAGES), *(row.result for row in MESSAGES)}
    assert sorted(kinds(union) - named) == []


def test_the_tables_contain_only_block_types_of_the_sdk():
    known = kinds(beta.BetaContentBlockParam)
    assert {row.call for row in MESSAGES} | {row.result for row in MESSAGES} <= known


@pytest.mark.parametrize(
    ("toolset", "inputs"),
    [("browser", claude.BrowserMemberInput), ("computer", claude.ComputerMemberInput)],
)
def test_the_members_of_a_toolset_have_the_parameters_of_the_sdk(toolset, inputs):
    def stem(name: str) -> str:
        return name.replace("_", "").lower()

    models = {
        stem(model.__name__.removeprefix(toolset.title()).removesuffix("Input")): model
        for model in typing.get_args(inputs)
    }
    assert sorted(map(stem, TOOLSETS[toolset])) == sorted(models)
    for name, member in TOOLSETS[toolset].items():
        fields = {field.alias or key: field for key, field in models[stem(name)].model_fields.items()}
        assert {**member.required, **member.optional}.keys() == fields.keys(), name
        assert set(member.required) == {key for key, field in fields.items() if field.is_required()}, name


async def replied(body: dict[str, Any], text: str) -> tuple[list[Any], ScriptedUpstream]:
    """Return the blocks of the reply, the same streamed and whole, and the upstream."""
    found = []
    for stream in (True, False):
        upstream = ScriptedUpstream(said("chat", text))
        sent = json.dumps({**body, "stream": stream}).encode()
        async with stream_asgi(ToolMiddleware(upstream, app_protocol="chat"), "/v1/messages", body=sent) as reply:
            assert await reply.head() == 200, await reply.body()
            data = await reply.body()
        if stream:
            assert_valid(validate_messages_stream(data, body))
            found.append(folded(data))
        else:
            found.append(json.loads(data)["content"])
    assert [without_id(block) for block in found[0]] == [without_id(block) for block in found[1]]
    return found[1], upstream


def without_id(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "id"}


def folded(data: bytes) -> list[Any]:
    """Return the blocks of a stream."""
    blocks: list[Any] = []
    pieces: list[str] = []
    for line in data.decode().splitlines():
        event = json.loads(line[6:]) if line.startswith("data: ") else {"type": ""}
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(block)
                pieces.clear()
            case {"type": "content_block_delta", "delta": {"partial_json": piece} | {"text": piece}}:
                pieces.append(piece)
            case {"type": "content_block_stop"}:
                text = "".join(pieces)
                blocks[-1] |= {"input": json.loads(text)} if blocks[-1]["type"] == "tool_use" else {"text": text}
    return blocks


@both
@each(("kind", "name", "arguments"), OFFERED)
async def test_a_call_is_returned_as_the_sdks_block(kind, name, arguments):
    blocks, upstream = await replied(asking(kind), calling(name, arguments))
    assert name in everything(upstream)
    toolset, _, member = name.rpartition(".")
    [call] = [block for block in blocks if block["type"] == "tool_use"]
    if toolset:
        parsed = MEMBERS[toolset].validate_python(call)
        assert (parsed.toolset_name, parsed.name) == (toolset, member)
    else:
        parsed = TypeAdapter(claude.ToolUseBlock).validate_python(call)
        assert parsed.name == name
    assert call["input"] == arguments


def test_disabled_members_are_not_offered():
    configs = {"javascript_exec": {"enabled": False}, "wait": {"enabled": True}, "zoom": None}
    names = [tool.name for tool in tools_of("browser_toolset_20260801", {"configs": configs})]
    assert "browser.javascript_exec" not in names
    assert {"browser.wait", "browser.zoom"} <= set(names)
    assert len(names) == 30


@both
async def test_a_member_may_be_called_by_its_short_name():
    arguments = {"target": {"type": "ref", "ref": "ref_7"}}
    blocks, _ = await replied(asking("browser_toolset_20260801"), calling("left_click", arguments))
    assert [block["name"] for block in blocks if "toolset_name" in block] == ["left_click"]


@both
@pytest.mark.parametrize("name", ["navigate", "browser"])
async def test_a_tool_choice_names_a_member_or_a_toolset(name):
    body = asking("browser_toolset_20260801", tool_choice={"type": "tool", "name": name})
    blocks, _ = await replied(body, calling("browser.navigate", {"url": "back"}))
    assert [block["name"] for block in blocks if block["type"] == "tool_use"] == ["navigate"]


@both
async def test_calls_and_results_of_a_toolset_are_history():
    shot = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    state = {
        "type": "browser_state",
        "tabs": [{"tab_id": "t1", "title": "A page", "url": "https://a.test/", "active": True}],
        "state_changes": [{"type": "tab_opened", "tab_id": "t1"}],
    }
    call = {"type": "tool_use", "id": "toolu_1", "name": "screenshot", "input": {}, "toolset_name": "browser"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [shot, state], "toolset_name": "browser"}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    body = asking("browser_toolset_20260801", messages=messages)
    blocks, upstream = await replied(body, "A page.")
    assert blocks == [{"type": "text", "text": "A page."}]
    prompt = everything(upstream)
    assert "tab t1 (active): A page https://a.test/" in prompt
    assert "tab_opened t1" in prompt
    assert "data:image/png;base64,iVBORw0KGgo=" in prompt
    assert '<invoke name=\\"browser.screenshot\\">' in prompt


@both
async def test_a_toolset_is_passed_to_a_messages_upstream_verbatim():
    call = {"type": "tool_use", "id": "toolu_1", "name": "wait", "input": {}, "toolset_name": "browser"}
    upstream = ScriptedUpstream(said("messages", "Fine."))
    body = asking("browser_toolset_20260801", stream=True)
    body["tools"].append({"type": "bash_20250124", "name": "bash"})
    body["messages"] += [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]},
    ]
    sent = json.dumps(body).encode()
    middleware = ToolMiddleware(upstream, app_protocol="messages", mode="native")
    async with stream_asgi(middleware, "/v1/messages", body=sent) as reply:
        assert await reply.head() == 200
    assert upstream.requests[0].json["tools"] == body["tools"]
    assert upstream.requests[0].json["messages"] == body["messages"]


@both
@pytest.mark.parametrize("mode", ["native", "rescue"])
async def test_a_forced_member_keeps_its_short_name_for_a_messages_upstream(mode):
    """The upstream gets the toolset verbatim, so it does not know the name `browser.navigate`."""
    upstream = ScriptedUpstream(said("messages", "Fine."))
    body = asking("browser_toolset_20260801", tool_choice={"type": "tool", "name": "navigate"}, stream=True)
    middleware = ToolMiddleware(upstream, app_protocol="messages", mode=mode)
    async with stream_asgi(middleware, "/v1/messages", body=json.dumps(body).encode()) as reply:
        assert await reply.head() == 200
    assert upstream.requests[0].json["tool_choice"] == body["tool_choice"]


@pytest.mark.parametrize("stream", [True, False])
def test_the_official_client_of_messages_gets_calls_of_typed_tools(stream):
    text = calling("browser.navigate", {"url": "https://a.test/"}) + calling("bash", {"command": "ls"})
    upstream = ScriptedUpstream(*[said("chat", text)] * 2)
    with uvicorn_server(ToolMiddleware(upstream, app_protocol="chat")) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        request: Any = asking("browser_toolset_20260801")
        request["tools"].append({"type": "bash_20250124", "name": "bash"})
        if stream:
            with client.messages.stream(**request) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**request)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.toolset_name, call.name, call.input) for call in calls] == [
        ("browser", "navigate", {"url": "https://a.test/"}),
        (None, "bash", {"command": "ls"}),
    ]
    assert message.stop_reason == "tool_use"


# --- Responses --------------------------------------------------------------------------------------------------------

ITEM = TypeAdapter(ResponseOutputItem)
LOCAL = {"type": "local"}
PICTURE = "data:image/png;base64,iVBORw0KGgo="


@frozen
class Typed:
    """A tool of Responses: its definition, the model's call, and the client's item."""

    tool: dict[str, Any]
    name: str
    arguments: Any = field(repr=False)
    item: dict[str, Any] = field(repr=False)
    """Fields of its item except id, call_id and status."""
    result: dict[str, Any] = field(repr=False)
    """The result as an item, without the call id."""
    said: str = field(repr=False)
    """Part of the result as the model reads it."""


TYPED = [
    Typed(
        {"type": "shell", "environment": LOCAL},
        "shell",
        {"commands": ["ls", "pwd"], "timeout_ms": 500},
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "timeout_ms": 500, "max_output_length": None},
            "environment": LOCAL,
        },
        {
            "type": "shell_call_output",
            "output": [
                {"stdout": "a.py\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "no\n", "outcome": {"type": "timeout"}},
            ],
        },
        "a.py\nexit code 0\nstderr:\nno\ntimed out",
    ),
    Typed(
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls", "-l"], "env": {"A": "1"}, "working_directory": "/tmp"},
        {
            "type": "local_shell_call",
            "action": {
                "type": "exec",
                "command": ["ls", "-l"],
                "env": {"A": "1"},
                "timeout_ms": None,
                "working_directory": "/tmp",
            },
        },
        {"type": "local_shell_call_output", "output": "a.py"},
        "a.py",
    ),
    Typed(
        {"type": "apply_patch"},
        "apply_patch",
        {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"},
        {
            "type": "apply_patch_call",
            "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"},
        },
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such line"},
        "no such line",
    ),
    Typed(
        {"type": "computer"},
        "computer",
        {"actions": [{"type": "click", "x": 3, "y": 4}, {"type": "scroll", "x": 1, "y": 2, "scroll_y": -5}]},
        {
            "type": "computer_call",
            "actions": [
                {"type": "click", "x": 3, "y": 4, "button": "left"},
                {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": -5},
            ],
            "pending_safety_checks": [],
        },
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": PICTURE}},
        PICTURE,
    ),
    Typed(
        {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "linux"},
        "computer",
        {"action": {"type": "keypress", "keys": ["ctrl", "a"]}},
        {
            "type": "computer_call",
            "action": {"type": "keypress", "keys": ["ctrl", "a"]},
            "pending_safety_checks": [],
        },
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": PICTURE}},
        PICTURE,
    ),
    Typed(
        {"type": "tool_search", "execution": "client", "description": "Finds tools."},
        "tool_search",
        {"query": "weather"},
        {"type": "tool_search_call", "arguments": {"query": "weather"}, "execution": "client"},
        {
            "type": "tool_search_output",
            "execution": "client",
            "tools": [{"type": "function", "name": "get_weather", "parameters": None, "strict": False}],
        },
        "These tools can be called now: get_weather.",
    ),
]
every_tool = each("typed", TYPED, ids=[typed.tool["type"] for typed in TYPED])


def wishing(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Go.", "tools": list(tools), **more}


async def responded(body: dict[str, Any], text: str, end: str = "stop") -> tuple[list[Any], ScriptedUpstream]:
    """Return the items of the reply, the same streamed and whole, and the upstream."""
    found = []
    for stream in (True, False):
        upstream = ScriptedUpstream(said("chat", text, end))
        sent = json.dumps({**body, "stream": stream}).encode()
        async with stream_asgi(ToolMiddleware(upstream, app_protocol="chat"), "/v1/responses", body=sent) as reply:
            data = await reply.body()
            assert await reply.head() == 200, data
        assert_valid((validate_responses_stream if stream else validate_responses_whole)(data, body))
        if stream:
            lines = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
            found.append(json.loads(lines[-1])["response"]["output"])
        else:
            found.append(json.loads(data)["output"])
    assert [own(item) for item in found[0]] == [own(item) for item in found[1]]
    return found[1], upstream


def own(item: dict[str, Any]) -> dict[str, Any]:
    """Return the item without its ids and status."""
    return {key: value for key, value in item.items() if key not in ("id", "call_id", "status")}


def test_every_tool_type_of_responses_has_a_row():
    known = kinds(gpt.ToolParam) - {"function", "custom", "namespace"}
    assert [kind for kind in sorted(known) if row_of(RESPONSES, kind) is None] == []


@pytest.mark.parametrize("union", [gpt.ResponseInputItemParam, ResponseOutputItem])
def test_every_item_type_of_responses_is_in_the_tables(union):
    named = {*ITEMS, *(row.call for row in RESPONSES), *(row.result for row in RESPONSES)}
    assert sorted(kinds(union) - named) == []


@both
@every_tool
async def test_a_call_is_returned_as_the_sdks_item(typed):
    items, upstream = await responded(wishing(typed.tool), calling(typed.name, typed.arguments))
    assert typed.name in json.dumps(upstream.requests[0].json)
    message, call = items
    assert message["content"][0]["text"] == "Fine."
    assert own(call) == typed.item
    assert call["status"] == "completed"
    parsed = ITEM.validate_python(call)
    assert parsed.type == typed.item["type"]
    assert type(parsed) is not type(ITEM.validate_python(message))


@both
@every_tool
async def test_a_call_and_its_result_are_history(typed):
    call = {**typed.item, "id": "x_1", "call_id": "call_1", "status": "completed"}
    user = {"role": "user", "content": "Go."}
    history = [user, call, {**typed.result, "call_id": "call_1"}]
    items, upstream = await responded(wishing(typed.tool, input=history), "Done.")
    assert [item["type"] for item in items] == ["message"]
    contents = [message["content"] for message in upstream.requests[0].json["messages"]]
    assert any(f'<invoke name="{typed.name}">' in str(content) for content in contents[1:])
    assert any(typed.said in str(content).replace("\\n", "\n") for content in contents[1:])


@both
@every_tool
async def test_a_truncated_call_is_never_completed(typed):
    text = calling(typed.name, typed.arguments)
    items, _ = await responded(wishing(typed.tool), text[: text.index("arguments") + 16], "length")
    for item in items[1:]:
        assert item["status"] == "incomplete"
        ITEM.validate_python(item)


def test_endless_arguments_fail_the_reply():
    """As for any other call, at most 64 MiB of a reply are buffered."""
    conversation = read_request(json.dumps(wishing(TYPED[0].tool)).encode(), LimitSettings())
    writer = ReplyWriter(conversation, id="resp_1", created=1, model="m")
    writer.feed([ReplyStart(), ReplyCallStart(0, 0, "call_1", "shell")])
    piece = ReplyArgumentsDelta(0, 0, "é" * 2**20)
    data = b"".join(writer.feed([piece]) for _ in range(33))
    assert b"response.failed" in data
    assert writer.feed([piece]) == b""


@both
@every_tool
async def test_a_tool_choice_names_a_typed_tool_by_its_type(typed):
    other = {"type": "function", "name": "other", "parameters": {"type": "object", "properties": {}}}
    kind = {"type": typed.tool["type"]}
    for choice in (kind, {"type": "allowed_tools", "mode": "required", "tools": [kind]}):
        body = wishing(typed.tool, other, tool_choice=choice)
        items, _ = await responded(body, calling(typed.name, typed.arguments).removeprefix("Fine.\n"))
        assert [item["type"] for item in items] == [typed.item["type"]]


@both
@pytest.mark.parametrize("environment", [None, {"type": "container_auto"}])
async def test_a_shell_run_by_the_origin_is_left_out(environment):
    items, upstream = await responded(wishing({"type": "shell", "environment": environment}), "No.")
    assert [item["type"] for item in items] == ["message"]
    assert "shell" not in json.dumps(upstream.requests[0].json)


@pytest.mark.parametrize("stream", [True, False])
def test_the_official_client_of_responses_gets_calls_of_typed_tools(stream):
    offered = [typed for typed in TYPED if typed.tool["type"] != "computer_use_preview"]
    text = "\n".join(calling(typed.name, typed.arguments) for typed in offered)
    upstream = ScriptedUpstream(said("chat", text))
    request: Any = wishing(*(typed.tool for typed in offered))
    with uvicorn_server(ToolMiddleware(upstream, app_protocol="chat")) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        if stream:
            with client.responses.stream(**request) as events:
                response = events.get_final_response()
        else:
            response = client.responses.create(**request)
    calls = [item for item in response.output if item.type != "message"]
    assert [own(json.loads(call.model_dump_json(exclude_unset=True))) for call in calls] == [
        typed.item for typed in offered
    ]


PATCH = """\
*** Begin Patch
*** Add File: new.py
+print(1)
*** Update File: old.py
@@ def f():
-    return 1
+    return 2
*** Delete File: gone.py
*** End Patch"""


@both
@pytest.mark.parametrize("key", ["diff", "input", "patch"])
async def test_a_patch_of_several_files_becomes_an_item_for_each_file(key):
    text = calling("apply_patch", {"type": "update_file", "path": "old.py", key: PATCH})
    items, _ = await responded(wishing({"type": "apply_patch"}), text)
    calls = [ITEM.validate_python(item) for item in items[1:]]
    assert [json.loads(call.operation.model_dump_json()) for call in calls] == [
        {"type": "create_file", "path": "new.py", "diff": "+print(1)"},
        {"type": "update_file", "path": "old.py", "diff": "@@ def f():\n-    return 1\n+    return 2"},
        {"type": "delete_file", "path": "gone.py"},
    ]
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == 3


@both
@pytest.mark.parametrize(
    ("tool", "arguments", "action"),
    [
        ({"type": "shell", "environment": LOCAL}, {"commands": "ls"}, {"commands": ["ls"]}),
        ({"type": "shell", "environment": LOCAL}, {"command": "ls", "timeout_ms": "9"}, {"timeout_ms": 9}),
        ({"type": "local_shell"}, {"command": "ls | wc"}, {"command": ["bash", "-lc", "ls | wc"]}),
        ({"type": "computer"}, {"type": "wait"}, None),
        ({"type": "computer"}, {"actions": [{"type": "move", "x": 1.0, "y": "2"}]}, None),
    ],
)
async def test_unambiguous_arguments_are_accepted(tool, arguments, action):
    items, _ = await responded(wishing(tool), calling(tool["type"], arguments))
    call = items[1]
    ITEM.validate_python(call)
    assert call["status"] == "completed"
    if action is not None:
        assert action.items() <= call["action"].items()
    else:
        assert call["actions"] in ([{"type": "wait"}], [{"type": "move", "x": 1, "y": 2}])


@both
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ({"type": "shell", "environment": LOCAL}, {}),
        ({"type": "shell", "environment": LOCAL}, {"commands": []}),
        ({"type": "local_shell"}, {"command": ""}),
        ({"type": "computer"}, {"actions": [{"type": "click", "x": 1}]}),
        ({"type": "computer"}, {"actions": [{"type": "fly"}]}),
        ({"type": "computer"}, {"actions": [{"type": "drag", "path": 7}]}),
        ({"type": "computer"}, {"actions": 7}),
        ({"type": "apply_patch"}, {"diff": "x"}),
        ({"type": "apply_patch"}, {"type": "update_file", "path": ""}),
    ],
)
async def test_arguments_without_a_valid_item_are_an_error(tool, arguments):
    for stream in (True, False):
        upstream = ScriptedUpstream(said("chat", calling(tool["type"], arguments), "stop"))
        sent = json.dumps({**wishing(tool), "stream": stream}).encode()
        async with stream_asgi(ToolMiddleware(upstream, app_protocol="chat"), "/v1/responses", body=sent) as reply:
            data = await reply.body()
        assert reply.status == (200 if stream else 502)
        done = [line for line in data.split(b"\n") if b'"type":"response.output_item.done"' in line]
        assert [b'"type":"message"' in line for line in done] == [True] * stream
        assert data.count(b"malformed_call") == 1


@both
async def test_a_native_call_of_the_upstream_becomes_an_item_too():
    call = {"id": "call_9", "type": "function", "function": {"name": "shell", "arguments": '{"commands": ["ls"]}'}}
    body = {
        "choices": [{"index": 0, "message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]
    }
    upstream = ScriptedUpstream(Script((json.dumps(body).encode(),), content_type="application/json"))
    request = json.dumps(wishing(TYPED[0].tool)).encode()
    middleware = ToolMiddleware(upstream, app_protocol="chat", mode="native")
    async with stream_asgi(middleware, "/v1/responses", body=request) as reply:
        [item] = json.loads(await reply.body())["output"]
    assert (item["type"], item["call_id"]) == ("shell_call", "call_9")
    assert item["action"]["commands"] == ["ls"]


@both
async def test_the_start_of_a_call_is_sent_immediately():
    text = calling("shell", {"commands": ["ls"]})
    upstream = ScriptedUpstream(said("chat", text))
    body = json.dumps(wishing(TYPED[0].tool, stream=True)).encode()
    async with stream_asgi(ToolMiddleware(upstream, app_protocol="chat"), "/v1/responses", body=body) as reply:
        data = (await reply.body()).decode()
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: ")]
    added, done = (
        next(
            event for event in events if event["type"] == f"response.output_item.{step}" and event["output_index"] == 1
        )
        for step in ("added", "done")
    )
    assert added["item"]["action"]["commands"] == []
    assert added["item"]["status"] == "in_progress"
    assert done["item"]["action"]["commands"] == ["ls"]


@both
async def test_tools_found_by_the_client_can_be_called():
    typed = TYPED[-1]
    history = [
        {"role": "user", "content": "Go."},
        {**typed.item, "call_id": "call_1"},
        {**typed.result, "call_id": "call_1"},
    ]
    items, _ = await responded(wishing(typed.tool, input=history), calling("get_weather", {}))
    assert [item["type"] for item in items] == ["message", "function_call"]


@both
async def test_a_search_run_by_the_origin_is_left_out_but_its_tools_are_kept():
    history = [
        {"role": "user", "content": "Go."},
        {"type": "tool_search_call", "execution": "server", "arguments": {}, "status": "completed"},
        {**TYPED[-1].result, "execution": "server"},
    ]
    items, upstream = await responded(wishing({"type": "tool_search"}, input=history), calling("get_weather", {}))
    assert [item["type"] for item in items] == ["message", "function_call"]
    assert "tool_search" not in json.dumps(upstream.requests[0].json)


@both
async def test_a_program_of_the_origin_is_history_once_it_has_ended():
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    program = {"type": "program", "id": "p_1", "call_id": "call_p", "code": "await f()", "fingerprint": "x"}
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "one"}
    over = {"type": "program_output", "id": "o_1", "call_id": "call_p", "result": "two", "status": "completed"}
    history: list[Any] = [{"role": "user", "content": "Go."}, program, call, result]
    _, upstream = await responded(wishing(tool, input=history), "Done.")
    assert "await f()" not in json.dumps(upstream.requests[0].json)
    _, upstream = await responded(wishing(tool, input=[*history, over]), "Done.")
    prompt = json.dumps(upstream.requests[0].json)
    assert "await f()" in prompt
    assert "two" in prompt


@both
async def test_a_local_shell_result_may_use_the_call_id_as_its_id():
    typed = TYPED[1]
    history = [
        {"role": "user", "content": "Go."},
        {**typed.item, "id": "lsh_1", "call_id": "call_1", "status": "completed"},
        {**typed.result, "id": "call_1"},
    ]
    _, upstream = await responded(wishing(typed.tool, input=history), "Done.")
    assert "a.py" in json.dumps(upstream.requests[0].json)


def test_an_output_without_a_call_id_answers_the_only_possible_call():
    """The SDK's types (openai 3.54) make the call id of a `function_call_output` optional."""
    called = [
        {"type": "function_call", "call_id": f"call_{name}", "name": name, "namespace": space, "arguments": "{}"}
        for name, space in (("f", None), ("g", "group"), ("g", None))
    ]
    answers: list[dict[str, Any]] = [
        {"type": "function_call_output", "name": "g", "namespace": "group", "output": "1"},
        {"type": "function_call_output", "call_id": None, "name": "f", "output": "2"},
        {"type": "function_call_output", "output": "3"},
    ]
    called[2]["call_id"] = "call_last"
    asked = {"role": "user", "content": "Go."}
    request: dict[str, Any] = {"model": "m", "input": [asked, *called, *answers]}
    conversation = read_request(json.dumps(request).encode(), LimitSettings())
    assert [result.id for result in conversation.messages[-1].results] == ["call_g", "call_f", "call_last"]
    for unclear in ([answers[2]], [*answers, answers[2]], [{**answers[1], "name": "other"}]):
        request["input"] = [asked, *called, *unclear]
        with pytest.raises(StreamtoolError, match="set `call_id`"):
            read_request(json.dumps(request).encode(), LimitSettings())


@both
async def test_the_environment_of_a_tool_is_in_the_prompt():
    skill = {"name": "charts", "description": "Draws.", "path": "/skills/charts"}
    _, upstream = await responded(wishing({"type": "shell", "environment": {**LOCAL, "skills": [skill]}}), "No.")
    assert "charts (in /skills/charts): Draws." in json.dumps(upstream.requests[0].json)
    _, upstream = await responded(wishing(TYPED[4].tool), "No.")
    assert "800 x 600 pixels; the environment is linux" in json.dumps(upstream.requests[0].json)
    _, upstream = await responded(wishing(TYPED[5].tool), "No.")
    assert "Finds tools." in json.dumps(upstream.requests[0].json)


@both
async def test_an_earlier_response_with_a_typed_call_is_stored():
    typed = TYPED[0]
    upstream = ScriptedUpstream(said("chat", calling("shell", typed.arguments)), said("chat", "Done."))
    middleware = ToolMiddleware(upstream, app_protocol="chat")

    async def asked(body: dict[str, Any]) -> Any:
        async with stream_asgi(middleware, "/v1/responses", body=json.dumps(body).encode()) as reply:
            return json.loads(await reply.body())

    first = await asked(wishing(typed.tool))
    result = {**typed.result, "call_id": first["output"][1]["call_id"]}
    second = await asked(wishing(typed.tool, previous_response_id=first["id"]) | {"input": [result]})
    assert second["output"][0]["content"][0]["text"] == "Done."
    assert "exit code 0" in json.dumps(upstream.requests[1].json)
    missing = await asked(wishing(typed.tool, input=[{"type": "item_reference", "id": "sh_nobody_1"}]))
    assert "sh_nobody_1" in missing["error"]["message"]


@both
async def test_invalid_arguments_are_retried_if_they_are_validated():
    upstream = ScriptedUpstream(
        said("chat", calling("shell", {"line": "ls"})), said("chat", calling("shell", {"commands": ["ls"]}))
    )
    middleware = ToolMiddleware(upstream, app_protocol="chat", arguments="complete")
    async with stream_asgi(middleware, "/v1/responses", body=json.dumps(wishing(TYPED[0].tool)).encode()) as reply:
        response = json.loads(await reply.body())
    assert response["status"] == "completed"
    assert response["output"][-1]["action"]["commands"] == ["ls"]
    assert len(upstream.requests) == 2


@both
@every_tool
async def test_an_unanswered_call_is_rejected(typed):
    call = {**typed.item, "call_id": "call_1", "status": "completed"}
    body = wishing(typed.tool, input=[{"role": "user", "content": "Go."}, call])
    middleware = ToolMiddleware(ScriptedUpstream(), app_protocol="chat")
    async with stream_asgi(middleware, "/v1/responses", body=json.dumps(body).encode()) as reply:
        assert await reply.head() == 400
        error = json.loads(await reply.body())["error"]
    assert error["message"].startswith(f"No tool output found for function call `call_1` to `{typed.name}`")


def read_messages(body: bytes) -> None:
    messages_protocol.read_request(body, LimitSettings())


ODD = (None, 7, "x", [], [7], {}, {"type": []}, {"type": "x"}, [{"type": 7}], [[]], {"actions": 7}, True)


@each("kind", sorted({*FORMATS_BY_ITEM, *TYPED_RESULTS, "program", "program_output"}))
def test_any_item_is_accepted_or_rejected(kind):
    for key in ("call_id", "id", "action", "actions", "operation", "arguments", "output", "tools", "result", "code"):
        for value in ODD:
            item = {"type": kind, "call_id": "call_1", "id": "call_1", key: value}
            with contextlib.suppress(StreamtoolError):
                read_request(json.dumps(wishing(input=["Go.", item])).encode(), LimitSettings())
            with contextlib.suppress(StreamtoolError):
                read_request(
                    json.dumps(wishing(input=[{"role": "user", "content": "Go."}, item])).encode(), LimitSettings()
                )


@pytest.mark.parametrize("key", ["environment", "execution", "description", "parameters", "display_width", "type"])
def test_any_tool_is_accepted_or_rejected(key):
    for typed in TYPED:
        for value in ODD:
            for choice in ({"type": value}, {"type": "allowed_tools", "mode": "auto", "tools": [{"type": value}]}):
                with contextlib.suppress(StreamtoolError):
                    body = wishing({**typed.tool, key: value}, tool_choice=choice)
                    read_request(json.dumps(body).encode(), LimitSettings())


@each("kind", CLIENTS_OWN)
def test_any_tool_or_block_of_messages_is_accepted_or_rejected(kind):
    for value in (*ODD, {"wait": {"enabled": []}}, {"wait": 7}):
        for key in ("configs", "name", "display_width_px", "max_characters", "enable_zoom"):
            with contextlib.suppress(StreamtoolError):
                read_messages(json.dumps(asking("bash_20250124", tools=[{"type": kind, key: value}])).encode())
        state = {"type": "browser_state", "tabs": value, "state_changes": value}
        call = {"type": "tool_use", "id": "toolu_1", "name": "wait", "input": {}, "toolset_name": value}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [state]}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        with contextlib.suppress(StreamtoolError):
            read_messages(json.dumps(asking(kind, messages=turns)).encode())


@each("typed", TYPED, ids=[typed.tool["type"] for typed in TYPED])
def test_any_arguments_give_valid_items_or_none(typed):
    spelling = FORMATS_BY_TOOL[typed.tool["type"]]
    for key in ("commands", "command", "type", "path", "diff", "operation", "actions", "action", "x", "keys", "env"):
        for value in (*ODD, 1e999, [{"type": "drag", "path": [7]}], {"type": "click", "x": [], "y": {}}):
            for arguments in (value, {key: value}, {**typed.arguments, key: value}):
                for fields in spelling.write(arguments):
                    item = {"type": spelling.item, "id": "x", "call_id": "c", "status": "completed", **fields}
                    assert fits(item), (arguments, item)
                    ITEM.validate_python(item)


def test_chat_completions_has_no_typed_tools():
    assert kinds(ChatCompletionToolUnionParam) == {"function", "custom"}


# --- the validator ----------------------------------------------------------------------------------------------------

WRONG = [
    {"type": "shell_call", "action": {"commands": []}},
    {"type": "shell_call", "action": {"commands": [1]}},
    {"type": "shell_call"},
    {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call", "action": {"type": "exec", "command": [], "env": {}}},
    {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a"}},
    {"type": "apply_patch_call", "operation": {"type": "move_file", "path": "a", "diff": ""}},
    {"type": "computer_call", "actions": [{"type": "wait"}]},
    {"type": "computer_call", "pending_safety_checks": [], "actions": []},
    {"type": "computer_call", "pending_safety_checks": [], "action": {"type": "click", "x": 1, "y": 2}},
    {"type": "tool_search_call", "arguments": "{}", "execution": "client"},
]


@each("item", [typed.item for typed in TYPED])
def test_the_validator_accepts_calls_of_typed_tools(item):
    assert fits({**item, "status": "completed"})
    assert not fits({**item, "status": "completed", "type": "function_call"})


@each("item", WRONG)
def test_the_validator_rejects_invalid_calls(item):
    assert not fits({**item, "status": "completed"})


def test_an_apply_patch_call_is_never_incomplete():
    assert not fits({**TYPED[2].item, "status": "incomplete"})


@both
async def test_the_validator_checks_that_a_typed_tool_is_offered():
    upstream = ScriptedUpstream(said("chat", calling("shell", {"commands": ["ls"]})))
    body = wishing(TYPED[0].tool)
    async with stream_asgi(
        ToolMiddleware(upstream, app_protocol="chat"), "/v1/responses", body=json.dumps(body).encode()
    ) as reply:
        data = await reply.body()
    other = {"type": "function", "name": "shell", "parameters": None}
    assert validate_responses_whole(data, body) == []
    assert [each.rule for each in validate_responses_whole(data, wishing(other))] == ["R14"]
    assert [each.rule for each in validate_responses_whole(data, {**body, "tool_choice": "none"})] == ["R14"]
