"""Tools that only a type names: what the model is offered for them, and how its calls go back.

The official SDKs say which types there are, and what a call of each looks like.
"""

import json
import typing
from typing import Annotated, Any

import anthropic
import anthropic.types as claude
import pytest
import typing_extensions
from anthropic.types import beta
from dialects import said
from pydantic import TypeAdapter
from servers import uvicorn_server

from streamtool.http.middleware import ToolMiddleware
from streamtool.protocols.messages.toolsets import TOOLSETS
from streamtool.protocols.messages.typed_tools import TYPED_TOOLS as MESSAGES
from streamtool.protocols.messages.typed_tools import tools_of
from streamtool.protocols.typed_tools import row_of
from streamtool.testing import ScriptedUpstream, assert_valid, stream_asgi, validate_messages_stream

both = pytest.mark.anyio
MEMBERS = {
    "browser": TypeAdapter(claude.BrowserToolUseBlock),
    "computer": TypeAdapter(claude.ComputerToolUseBlock),
}


def kinds(union: Any) -> set[str]:
    """The values of `type` that the members of a union have."""
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
    """A value that fits the schema; `whole`: with all that may be left out."""
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
    """What the model was sent."""
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
def test_every_type_of_tool_that_the_sdk_knows_has_a_row(union):
    assert [kind for kind in sorted(kinds(union) - {"custom"}) if row_of(MESSAGES, kind) is None] == []


def test_calls_and_results_are_blocks_that_the_sdk_knows():
    known = kinds(beta.BetaContentBlockParam)
    assert {row.call for row in MESSAGES} | {row.result for row in MESSAGES} <= known


@pytest.mark.parametrize(
    ("toolset", "inputs"),
    [("browser", claude.BrowserMemberInput), ("computer", claude.ComputerMemberInput)],
)
def test_the_members_of_a_toolset_take_what_the_sdk_says(toolset, inputs):
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
    """The blocks of the reply, streamed and whole alike, and the upstream."""
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
    """The blocks of a stream."""
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
@pytest.mark.parametrize(("kind", "name", "arguments"), OFFERED)
async def test_a_call_comes_back_as_the_block_of_the_sdk(kind, name, arguments):
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


def test_members_that_are_switched_off_are_not_offered():
    configs = {"javascript_exec": {"enabled": False}, "wait": {"enabled": True}, "zoom": None}
    names = [tool.name for tool in tools_of("browser_toolset_20260801", {"configs": configs})]
    assert "browser.javascript_exec" not in names
    assert {"browser.wait", "browser.zoom"} <= set(names)
    assert len(names) == 30


@both
async def test_a_member_is_called_by_its_own_name_where_that_is_enough():
    arguments = {"target": {"type": "ref", "ref": "ref_7"}}
    blocks, _ = await replied(asking("browser_toolset_20260801"), calling("left_click", arguments))
    assert [block["name"] for block in blocks if "toolset_name" in block] == ["left_click"]


@both
@pytest.mark.parametrize("name", ["navigate", "browser"])
async def test_a_choice_names_a_member_or_a_toolset(name):
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
    assert '\\"name\\": \\"browser.screenshot\\"' in prompt


@both
async def test_a_toolset_reaches_an_upstream_of_messages_as_it_came():
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
