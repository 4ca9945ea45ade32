"""Requests of coding agents and agent libraries are accepted, become a prompt, and are answered in their own
protocol.
"""

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Literal

import httpx
import pytest
from support.agent_requests import (
    ALL,
    BETAS,
    MODEL,
    AgentRequest,
    claude_code,
    codex,
    codex_additional_tools,
    compact,
    every,
    hermes,
    opencode,
    opencode_title,
    pydantic_ai,
)
from support.dialects import PATHS, USAGE, Got, events, read, said
from support.sweeps import alternating, each
from support.validators import (
    Violation,
    assert_valid,
    validate_chat_stream,
    validate_messages_error,
    validate_messages_stream,
    validate_responses_error,
    validate_responses_stream,
)

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import ModelRule, Settings, UpstreamSettings
from streamtool.testing import Recorded, Script, ScriptedUpstream, stream_asgi

both = pytest.mark.anyio
one = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""A single backend suffices for tests with many cases."""

REQUESTS = {request.name: request for turn in (1, 2) for request in every(turn)}
FIRST = {request.name: request for request in every(1)}
OTHERS = ("ollama", "gemini")
VALID: dict[str, Callable[..., list[Violation]]] = {
    "chat": validate_chat_stream,
    "messages": validate_messages_stream,
    "responses": validate_responses_stream,
}
JSON = (b"content-type", b"application/json")
WORDS = 'Fine — I\'ll do it: "quoted", <b>bold</b>, {"a": 1}, `<tool_call>` in code.'
FREE = [name for name, request in FIRST.items() if request.body.get("tool_choice") != "required"]
"""Requests that may be answered without a call."""


def calling(name: str, arguments: str, words: str = WORDS) -> str:
    """Return the text of a model that calls a tool."""
    return f'{words}\n<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


async def asked(app: Any, request: AgentRequest, body: bytes | None = None) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers of the response to the agent's request."""
    async with stream_asgi(
        app,
        PATHS[request.protocol],
        body=request.data if body is None else body,
        headers=request.headers,
        scope={"query_string": request.query},
    ) as reply:
        status = await reply.head()
        return status, await reply.body(), reply.headers


async def answered(
    request: AgentRequest, upstream: str, text: str, roles: Literal["strict", "free"] = "strict"
) -> tuple[bytes, Recorded]:
    """Return the valid stream for the agent if the upstream writes `text`, and the request to the upstream."""
    app = ScriptedUpstream(said(upstream, text))
    middleware = ToolMiddleware(app, app_protocol=upstream, roles=roles, format="tool_call")
    status, body, headers = await asked(middleware, request)
    assert status == 200, body
    assert_valid(VALID[request.protocol](body, request.body, headers=headers))
    assert len(app.requests) == 1
    return body, app.requests[0]


def flat(protocol: str, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Move the text before the calls, as Chat Completions has only one field for text; other protocols keep the
    order.
    """
    return tuple(sorted(parts, key=lambda part: not isinstance(part, str))) if protocol == "chat" else parts


# --- the prompt
# --------------------------------------------------------------------------------------------------------

TOOLS = {"tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "toolConfig", "tool_config"}
CALLS = {"tool_calls", "tool_call_id", "functionCall", "functionResponse", "tool_use_id", "call_id"}


def keys(value: Any) -> Iterable[str]:
    """Return all keys in a JSON value."""
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def turns(body: Any) -> list[tuple[str, str]]:
    """Return roles and texts of the prompt, for the body of any protocol."""

    def text(content: Any) -> str:
        if isinstance(content, str):
            return content
        assert all(set(part) <= {"type", "text", "cache_control"} for part in content)
        return "\n\n".join(part["text"] for part in content)

    system = body.get("system") or body.get("systemInstruction", {}).get("parts") or ""
    head = [("system", text(system))] if system else []
    if "contents" in body:
        roles = {"user": "user", "model": "assistant"}
        return [*head, *((roles[turn["role"]], text(turn["parts"])) for turn in body["contents"])]
    return [*head, *((turn["role"], text(turn["content"])) for turn in body["messages"])]


def history(prompt: list[tuple[str, str]]) -> tuple[Any, ...]:
    """Return the calls and results in the messages, in order."""
    past: list[Any] = []
    for role, text in prompt:
        if role == "assistant":
            at = 0
            while (at := text.find("<tool_call>\n", at)) >= 0:
                call, at = json.JSONDecoder().raw_decode(text, at + len("<tool_call>\n"))
                assert text.startswith("\n</tool_call>", at)
                assert list(call) == ["name", "arguments"]
                past.append(("call", call["name"], call["arguments"]))
        elif role == "user":
            framed = re.findall(r'<tool_response name="(.*?)">\n(.*?)\n</tool_response>', text, re.DOTALL)
            past += [("result", name, result) for name, result in framed]
    return tuple(past)


def joined(prompt: list[tuple[str, str]]) -> str:
    return "\n\n".join(f"{role}: {text}" for role, text in prompt)


def assert_projected(request: AgentRequest, sent: Recorded) -> None:
    """Check that the prompt contains the contents of the request, and no protocol fields."""
    body = sent.json
    assert not TOOLS & set(body)
    assert not CALLS & set(keys(body))
    prompt = turns(body)
    whole = "\n\n".join(text for _, text in prompt)
    contract = "\n\n".join(text for role, text in prompt if role == "system")
    for name in request.tools:
        assert len(re.findall(rf"^{re.escape(name)}\(", contract, re.MULTILINE)) == 1, name
    for tool in request.listed:
        assert not tool.get("defer_loading") or f"\n{tool['name']}(" not in contract
    assert [whole.count(text) for text in request.system] == [1] * len(request.system)
    assert [whole.count(text) for text in request.said] == [1] * len(request.said)
    places = [whole.index(text) for text in request.said]
    assert places == sorted(places)
    assert history(prompt) == request.history
    for entry in request.history:  # each result appears once, in any frame
        assert entry[0] == "call" or whole.count(f'name="{entry[1]}">\n{entry[2]}\n') == 1


@both
@one
@each("upstream", ["chat", *OTHERS])
@each("name", REQUESTS)
async def test_a_request_is_accepted_projected_and_answered(name: str, upstream: str):
    request = REQUESTS[name]
    body, sent = await answered(request, upstream, calling(*request.call))
    assert_projected(request, sent)
    got = read(request.protocol, body, stream=True)
    assert got == Got(flat(request.protocol, (WORDS, request.call)), "calls", USAGE, None, got.ids)
    assert got.ids[0] not in request.data.decode()
    assert sent.headers["accept-encoding"] == "identity"
    if request.protocol != upstream:
        assert not [header for header in sent.headers if header.startswith(("anthropic-", "x-stainless-"))]


@both
@one
@pytest.mark.parametrize("name", [name for name in REQUESTS if name.endswith("2")])
async def test_calls_in_one_reply_have_unique_ids(name: str):
    """Agents break on ids that repeat within a conversation."""
    request = REQUESTS[name]
    body, _ = await answered(request, "ollama", "\n".join([calling(*request.call), calling(*request.call, "")]))
    got = read(request.protocol, body, stream=True)
    assert got.parts == (WORDS, request.call, request.call)
    assert len(set(got.ids)) == 2
    assert not [id_ for id_ in got.ids if id_ in request.data.decode()]


@both
@pytest.mark.parametrize("name", ["claude_code_12-messages-2", "codex-responses-2", "qwen_code-chat-2"])
async def test_on_both_backends(name: str):
    request = REQUESTS[name]
    body, sent = await answered(request, "chat", calling(*request.call))
    assert_projected(request, sent)
    assert read(request.protocol, body, stream=True).parts == (WORDS, request.call)


@both
@one
@each("upstream", ["chat", "ollama"])
@each("name", FREE)
async def test_the_prompt_of_a_turn_is_a_prefix_of_the_next(name: str, upstream: str):
    """So the upstream's prefix cache applies."""
    now, later = FIRST[name], REQUESTS[f"{name.removesuffix('1')}2"]
    _, first = await answered(now, upstream, "ok")
    _, second = await answered(later, upstream, "ok")
    before, after = turns(first.json), turns(second.json)
    assert joined(after).startswith(joined(before))
    assert len(after) > len(before)


@both
@one
@pytest.mark.parametrize("name", [name for name in REQUESTS if "-messages-" in name])
async def test_other_fields_are_forwarded_if_the_protocols_match(name: str):
    request = REQUESTS[name]
    body, sent = await answered(request, "messages", calling(*request.call), roles="free")
    assert_projected(request, sent)
    assert read("messages", body, stream=True).parts == (WORDS, request.call)
    for key in ("max_tokens", "metadata", "thinking", "context_management", "output_config"):
        assert sent.json.get(key) == request.body.get(key)
    beta = dict(request.headers).get(b"anthropic-beta", b"").decode()
    assert sent.headers.get("anthropic-beta", "") == beta
    if "claude_code" in name:
        assert sent.headers["anthropic-beta"].split(",") == list(BETAS)
        assert sent.scope["query_string"] == b"beta=true"
        assert sent.json["messages"][:2] == request.body["messages"][:2]  # the message of role `system`, unchanged


@both
@one
@pytest.mark.parametrize("name", FREE)
async def test_an_answer_without_a_call_is_text(name: str):
    request = FIRST[name]
    text = "Done.\n\nThe tool_call was not needed; `<tool_call>` is how one is written.\n"
    body, _ = await answered(request, "chat", text)
    got = read(request.protocol, body, stream=True)
    assert ("".join(got.parts), got.reason) == (text, "stop")


SIZES = {
    "claude_code_12": ((12, 24), (31, 63), (12, 17), (50, 76)),
    "claude_code_24": ((12, 24), (31, 63), (12, 17), (50, 76)),
    "codex": ((9, 10), (9, 25), (20, 27), (38, 53)),
    "codex_additional_tools": ((9, 10), (9, 25), (20, 27), (38, 53)),
    "opencode": ((9, 9), (18.5, 19.5), (9.5, 10.5), (28, 30)),
    "qwen_code": ((14, 14), (38, 40), (26, 28), (76, 81)),
    "hermes": ((16, 16), (38, 40), (6.5, 7.5), (45, 47)),
    "cn": ((11, 11), (5.5, 6.5), (0.9, 1.1), (7, 8)),
    "pi": ((4, 4), (2.5, 3.5), (1.5, 2.5), (5, 6)),
}
"""Number of tools, then kilobytes of the tools, of the system text and of the first body."""


@pytest.mark.parametrize("name", [name for name in FIRST if FIRST[name].agent in SIZES])
def test_requests_are_as_large_as_the_real_ones(name: str):
    request = FIRST[name]
    texts = sum(len(text.encode()) for text in request.system)
    sizes = (len(request.listed), len(compact(request.listed).encode()) / 1000, texts / 1000, len(request.data) / 1000)
    for size, (least, most) in zip(sizes, SIZES[request.agent], strict=True):
        assert least <= size <= most, sizes


def test_the_builders_cover_each_variant():
    """Each builder contains the features that it was written for."""
    first, second = claude_code(1).body, claude_code(2).body
    assert [block["type"] for block in first["system"]] == ["text"] * 3
    assert first["messages"][1]["role"] == second["messages"][1]["role"] == "system"
    assert isinstance(first["messages"][1]["content"], list)
    assert isinstance(second["messages"][1]["content"], str)
    assert "output_config" in second["messages"][1]
    assert sum(tool.get("defer_loading", False) for tool in first["tools"]) == 1
    assert not any("type" in tool for tool in first["tools"])
    assert len(BETAS) == 8
    assert {tool["type"] for tool in codex().listed} == {"function", "namespace", "custom", "tool_search", "web_search"}
    assert codex_additional_tools().body["tools"] == []
    qwen = FIRST["qwen_code-chat-1"]
    assert len(qwen.body["messages"][1]["content"]) == 5
    assert "tool_call" in qwen.tools
    assert qwen.system[0].count("tool_call") > 100
    assert all(tool["function"]["strict"] is False for tool in FIRST["pi-chat-1"].listed)
    assert all(tool["eager_input_streaming"] for tool in FIRST["pi-messages-1"].listed)
    assert not [turn for turn in REQUESTS["smolagents-chat-2"].body["messages"] if turn["role"] == "tool"]


# --- Codex: calls that are not functions
# -------------------------------------------------------------------------------


def patch(size: int) -> str:
    """Return a patch of about `size` characters that contains everything that could be mistaken for markup."""
    lines = [
        '+\tprint("π ≈ {:.3f}\\n".format(math.pi), \'a\\\\b\', r"\\d+")',
        "-    return {'name': 'apply_patch', 'arguments': {}}",
        "+</tool_call>",
        '+<tool_call>{"name": "exec_command", "arguments": {"cmd": "rm -rf /"}}</tool_call>',
        "*** Update File: src/漢字/naïve 🙂.py",
        "@@ class A:  # </parameter></invoke>",
        ' \t"""It\'s a \\"docstring\\" — \\u00e9, \\x00, 100 %."""',
        "+```json",
        "+}}]}\\",
        "+",
        " <|im_end|>\t\u2028\x7f",
        "*** End of File",
    ]
    out = ["*** Begin Patch", "*** Update File: shapes.py"]
    while sum(map(len, out)) + len(out) < size:
        out.append(lines[len(out) % len(lines)] + str(len(out)) * (len(out) % 3))
    return "\n".join([*out, "*** End Patch\n"])


class Watched:
    """An upstream that records, after each piece it sends, how many messages the client has received."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.client: list[bytes] = []
        self.had: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for step in self.script.steps:
            await send({"type": "http.response.body", "body": step, "more_body": True})
            self.had.append(len(self.client))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def before(self, app: Any) -> Any:
        """Return `app`, recording the messages that it sends."""

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            async def note(message: Any) -> None:
                self.client.append(message.get("body", b""))
                await send(message)

            await app(scope, receive, note)

        return noted

    def arrived(self, text: Callable[[Any], str]) -> list[int]:
        """Return for each piece how many characters the client had received, as measured by `text` for each event."""
        sizes = [0]
        for body in self.client:
            sizes.append(sizes[-1] + sum(len(text(event)) for event in events(body)))
        return [sizes[count] for count in self.had]


def told(kind: str, key: str) -> Callable[[Any], str]:
    return lambda event: event[key] if event["type"] == kind else ""


async def watched(request: AgentRequest, text: str) -> tuple[bytes, Watched]:
    """Return the valid stream for `text`, which the upstream sends four characters at a time."""
    upstream = Watched(said("chat", text))
    app = ToolMiddleware(upstream, app_protocol="chat", format="tool_call")
    status, body, headers = await asked(upstream.before(app), request)
    assert status == 200
    assert_valid(VALID[request.protocol](body, request.body, headers=headers))
    return body, upstream


def piece_ends(pieces: Iterable[str], start: int) -> list[int]:
    """Return the end position of each of the consecutive pieces that begin at `start`."""
    ends = []
    for piece in pieces:
        start += len(piece)
        ends.append(start)
    return ends


def complete_counts(ends: list[int], upstream: Watched) -> list[int]:
    """Return for each piece of the upstream how many characters are complete. The first piece is only the role."""
    return [bisect_right(ends, 4 * number) for number in range(len(upstream.had))]


@both
@each("escaped", [False, True], ids=["as it is", "escaped"])
@each("build", [codex, codex_additional_tools])
@alternating
async def test_a_patch_arrives_piece_by_piece_and_byte_for_byte(build: Callable[..., AgentRequest], escaped: bool):
    request, text = build(2), patch(5_000)
    written = [json.dumps(character, ensure_ascii=escaped)[1:-1] for character in text]
    model = calling("apply_patch", f'{{"input": "{"".join(written)}"}}')
    body, upstream = await watched(request, model)
    added, *_ = [
        event["item"]
        for event in events(body)
        if event["type"] == "response.output_item.added" and event["item"]["type"] != "message"
    ]
    assert (added["type"], added["name"], added["input"]) == ("custom_tool_call", "apply_patch", "")
    deltas = [event for event in events(body) if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(event["delta"] for event in deltas) == text
    done, *_ = [event for event in events(body) if event["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == text
    message, item = events(body)[-1]["response"]["output"]
    assert message["content"][0]["text"] == WORDS
    assert item == {**added, "input": text, "status": "completed"}
    # piece by piece
    arrived = upstream.arrived(told("response.custom_tool_call_input.delta", "delta"))
    whole = complete_counts(piece_ends(written, model.index("*** Begin Patch")), upstream)
    waiting = [had - got for had, got in zip(whole, arrived, strict=True)]
    assert min(waiting) == 0
    assert max(waiting) <= 0
    assert len(deltas) >= len("".join(written)) // 12
    assert len(deltas) == sum(now > before for before, now in zip([0, *whole], whole, strict=False))


@both
@one
@pytest.mark.parametrize("protocol", ALL)
async def test_long_arguments_arrive_piece_by_piece(protocol: str):
    request = opencode(protocol, 2)
    arguments = compact({"filePath": "/work/π.patch", "content": patch(6_000)})
    model = calling("write", arguments)
    body, upstream = await watched(request, model)
    got = read(protocol, body, stream=True)
    assert got.parts == (WORDS, ("write", arguments))

    def text(event: Any) -> str:
        match event:
            case {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": str(found)}}]}}]}:
                return found
            case {"delta": {"partial_json": str(found)}}:
                return found
            case {"type": "response.function_call_arguments.delta", "delta": str(found)}:
                return found
        return ""

    whole = complete_counts(piece_ends(arguments, model.index(arguments)), upstream)
    waiting = [had - got for had, got in zip(whole, upstream.arrived(text), strict=True)]
    assert min(waiting) == 0
    assert max(waiting) <= len('","content"')  # the quote that ends a value waits for the next key and its colon
    behind = arguments.index('"content":"') + len('"content":"')
    waiting = [had - has for had, has in zip(whole, upstream.arrived(text), strict=True) if had > behind]
    assert max(waiting) <= len('"}')  # a lone backslash, or the quote and the bracket that end the call


@both
async def test_a_truncated_patch_is_not_a_complete_call():
    request, text = codex(2), patch(2_000)
    model = calling("apply_patch", json.dumps({"input": text}))
    end = model.index("*** Begin Patch") + 1_000
    written = [json.dumps(character)[1:-1] for character in text]
    cut = text[: bisect_right(piece_ends(written, end - 1_000), end)]
    app = ScriptedUpstream(said("chat", model[:end], "length"))
    status, body, headers = await asked(ToolMiddleware(app, app_protocol="chat", format="tool_call"), request)
    assert status == 200
    assert_valid(validate_responses_stream(body, request.body, headers=headers))
    response = events(body)[-1]["response"]
    assert (response["status"], [item["type"] for item in response["output"]]) == ("failed", ["message"])
    kind = "response.custom_tool_call_input.delta"
    assert "".join(event["delta"] for event in events(body) if event["type"] == kind) == cut
    assert not [event for event in events(body) if event["type"] == "response.custom_tool_call_input.done"]


@both
@pytest.mark.parametrize("build", [codex, codex_additional_tools])
@pytest.mark.parametrize("upstream", ["chat", "gemini"])
async def test_a_tool_of_a_namespace_may_be_called_by_both_names(build: Callable[..., AgentRequest], upstream: str):
    text = "\n".join(
        calling(name, arguments, words)
        for name, arguments, words in (
            ("mcp__docs.lookup", '{"symbol":"π"}', "Two."),
            ("multi_agent.wait", '{"ids":["a"],"timeout_ms":5}', ""),
        )
    )
    body, _ = await answered(build(2), upstream, text)
    _, first, second = events(body)[-1]["response"]["output"]
    for item, namespace, name, arguments in (
        (first, "mcp__docs", "lookup", '{"symbol":"π"}'),
        (second, "multi_agent", "wait", '{"ids":["a"],"timeout_ms":5}'),
    ):
        assert item["type"] == "function_call"
        assert (item["namespace"], item["name"], item["arguments"]) == (namespace, name, arguments)
    added = [event["item"] for event in events(body) if event["type"] == "response.output_item.added"][1:]
    assert [(item["namespace"], item["name"]) for item in added] == [("mcp__docs", "lookup"), ("multi_agent", "wait")]
    assert first["call_id"] != second["call_id"]


@both
@one
async def test_the_grammar_of_a_custom_tool_is_in_the_prompt():
    for request in (codex(), codex_additional_tools()):
        _, sent = await answered(request, "chat", "ok")
        contract = turns(sent.json)[0][1] + "\n\n".join(text for role, text in turns(sent.json) if role == "system")
        assert 'begin_patch: "*** Begin Patch" LF' in contract


# --- the first requests of agents
# --------------------------------------------------------------------------------------


def proxy(*scripts: Script, protocol: str = "chat", **settings: Any) -> tuple[Proxy, ScriptedUpstream]:
    upstream = ScriptedUpstream(*scripts)
    given = UpstreamSettings(name="up", url="http://up.test", protocol=protocol)  # type: ignore[arg-type]
    return Proxy(Settings(upstreams={"up": given}, format="tool_call", **settings), apps={"up": upstream}), upstream


def told_json(value: Any, status: int = 200) -> Script:
    return Script((json.dumps(value).encode(),), status, "application/json")


async def fetched(  # noqa: PLR0917  in the order of a request
    app: Any, method: str, path: str, body: bytes = b"", headers: Any = (), query: bytes = b""
) -> Any:
    async with stream_asgi(
        app, path, method=method, body=body, headers=headers, scope={"query_string": query}
    ) as reply:
        status = await reply.head()
        return status, await reply.body(), reply.headers


@both
async def test_a_head_request_is_answered():
    app, upstream = proxy(told_json({}), client_keys=("sk-local",))
    assert (await fetched(app, "HEAD", "/"))[0] == 200
    assert upstream.requests == []


@both
@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_models_are_listed(protocol: str):
    listed = {"data": [{"id": "qwen3", "object": "model"}, {"id": "glm", "object": "model"}], "object": "list"}
    app, upstream = proxy(
        told_json(listed),
        protocol=protocol,
        client_keys=("sk-local",),
        models=(ModelRule(match="claude-fine", use="qwen3"),),
    )
    headers = claude_code().headers
    status, body, _ = await fetched(app, "GET", "/v1/models", headers=headers, query=b"limit=1000")
    found = json.loads(body)
    assert status == 200
    assert [model["id"] for model in found["data"]] == ["claude-fine", "qwen3", "glm"]
    assert all(model["type"] == "model" and model["display_name"] for model in found["data"])
    assert found["has_more"] is False
    assert (found["first_id"], found["last_id"]) == ("claude-fine", "glm")
    status, body, _ = await fetched(app, "GET", "/v1/models/claude-fine", headers=headers)
    assert (status, json.loads(body)["id"]) == (200, "claude-fine")
    assert upstream.requests[0].path == "/v1/models"


@both
async def test_an_unknown_path_is_a_404():
    app, upstream = proxy(told_json({}))
    assert (await fetched(app, "GET", "/api/v1/models", headers=hermes("chat").headers))[0] == 404
    assert upstream.requests == []


def to_count(turn: int = 1, tools: int = 12) -> bytes:
    """Return a token count request of Claude Code."""
    body = claude_code(turn, tools=tools).body
    return compact({key: body[key] for key in ("model", "messages", "system", "tools", "thinking")}).encode()


async def counted(app: Any, body: bytes, headers: Any = None) -> int:
    given = claude_code().headers if headers is None else headers
    status, answer, found = await fetched(app, "POST", "/v1/messages/count_tokens", body, given, b"beta=true")
    assert status == 200
    assert found["content-type"] == "application/json"
    count = json.loads(answer)
    assert list(count) == ["input_tokens"]
    assert isinstance(count["input_tokens"], int)
    return int(count["input_tokens"])


@both
@pytest.mark.parametrize("turn", [1, 2])
async def test_an_upstream_that_can_count_receives_the_tool_prompt(turn: int):
    app, upstream = proxy(told_json({"input_tokens": 4242}), protocol="messages")
    assert await counted(app, to_count(turn)) == 4242
    [sent] = upstream.requests
    assert sent.path == "/v1/messages/count_tokens"
    assert sent.headers["anthropic-beta"].split(",") == list(BETAS)
    assert_projected(claude_code(turn), sent)
    assert not {"max_tokens", "stream"} & set(sent.json)


@both
async def test_the_counted_request_equals_the_prompt():
    """The count is made for exactly the request that a reply would send."""
    app, upstream = proxy(told_json({"input_tokens": 1}), said("messages", "ok"), protocol="messages")
    await counted(app, to_count(2))
    assert (await asked(app, claude_code(2)))[0] == 200
    first, second = upstream.requests
    assert (first.json["system"], first.json["messages"]) == (second.json["system"], second.json["messages"])


@both
async def test_other_upstreams_are_not_asked_and_the_count_is_estimated():
    app, upstream = proxy(told_json({"error": "no"}, 500))
    few, many, later = [await counted(app, body) for body in (to_count(), to_count(tools=24), to_count(2))]
    none = await counted(app, compact({**json.loads(to_count()), "tools": []}).encode())
    assert upstream.requests == []
    assert 4_000 < none < few < later
    assert few < many
    assert few - none > 30_000 // 8


@both
@pytest.mark.parametrize("answer", [told_json({"error": {"message": "no"}}, 404), told_json({"input_tokens": "x"})])
async def test_a_failing_count_falls_back_to_an_estimate(answer: Script):
    app, upstream = proxy(answer, protocol="messages")
    assert await counted(app, to_count()) > 10_000
    assert len(upstream.requests) == 1


@both
@pytest.mark.parametrize("protocol", ["chat", "messages"])
@pytest.mark.parametrize("part", ["text", "one tool", "a call", "a result"])
async def test_parts_of_a_conversation_can_be_counted(part: str, protocol: str):
    """Agents count single messages and tools to show what fills the context; a call then lacks its result."""
    body = claude_code(2).body
    hello = [{"role": "user", "content": "foo"}]
    asked_for = {
        "text": {"messages": hello},
        "one tool": {"messages": hello, "tools": body["tools"][:1]},
        "a call": {"messages": body["messages"][:3], "tools": body["tools"]},
        "a result": {"messages": body["messages"][3:4], "tools": body["tools"]},
    }[part]
    app, _ = proxy(told_json({"input_tokens": 99}), protocol=protocol)
    count = await counted(app, compact({"model": MODEL, **asked_for}).encode())
    assert count == 99 if protocol == "messages" else count > 0


@both
async def test_over_the_network_the_count_uses_the_clients_key_and_betas():
    seen: list[httpx.Request] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        seen.append(sent)
        return httpx.Response(200, json={"input_tokens": 7})

    given = UpstreamSettings(name="up", url="http://up.test", protocol="messages")
    app = Proxy(Settings(upstreams={"up": given}, format="tool_call"), transport=httpx.MockTransport(answer))
    assert await counted(app, to_count()) == 7
    [sent] = seen
    assert str(sent.url).partition("?")[0] == "http://up.test/v1/messages/count_tokens"
    assert (sent.headers["x-api-key"], sent.headers["anthropic-version"]) == ("sk-local", "2023-06-01")
    assert sent.headers["anthropic-beta"].split(",") == list(BETAS)
    assert "tools" not in json.loads(sent.content)
    await app.aclose()


@both
@pytest.mark.parametrize(
    ("path", "method"),
    [("/v1/messages", "POST"), ("/v1/messages/count_tokens", "POST"), ("/v1/messages/count_tokens", "GET")],
)
async def test_errors_on_its_paths_have_the_format_of_messages(path: str, method: str):
    app, _ = proxy(told_json({}), client_keys=("other",))
    status, body, _ = await fetched(app, method, path, to_count(), claude_code().headers)
    assert status == 401
    assert_valid(validate_messages_error(body))
    known = [(name, b"other" if name == b"x-api-key" else value) for name, value in claude_code().headers]
    status, body, _ = await fetched(app, method, path, b"[]", known)
    assert status == (405 if method == "GET" else 400)
    assert_valid(validate_messages_error(body))


@both
async def test_an_agent_that_asks_for_the_vendors_model_gets_the_one_of_the_settings():
    rules = (ModelRule(match="claude-*", use="qwen3", upstream="up"),)
    request = claude_code(2, model="claude-opus-4-5-20251101")
    app, upstream = proxy(said("chat", calling(*request.call)), models=rules, client_keys=("sk-local",))
    status, body, headers = await asked(app, request)
    assert status == 200
    assert_valid(validate_messages_stream(body, request.body, headers=headers))
    assert read("messages", body, stream=True).parts == (WORDS, request.call)
    assert upstream.requests[0].json["model"] == "qwen3"
    assert_projected(request, upstream.requests[0])


# --- requests without tools, and compressed ones ----------------------------------------------------------------------


@both
async def test_the_request_for_a_title_passes_unchanged():
    body, headers = opencode_title()
    sent = json.dumps(body, indent=1).encode()
    script = said("chat", "Using <tool_call> math.pi")
    app = ScriptedUpstream(script)
    status, data, _ = await fetched(ToolMiddleware(app), "POST", PATHS["chat"], sent, headers)
    assert (status, data) == (200, b"".join(step for step in script.steps if isinstance(step, bytes)))
    assert app.requests[0].body == sent


@both
async def test_the_request_for_a_title_is_translated():
    body, headers = opencode_title()
    app = ScriptedUpstream(said("gemini", "Using math.pi"))
    middleware = ToolMiddleware(app, app_protocol="gemini")
    status, data, found = await fetched(middleware, "POST", PATHS["chat"], compact(body).encode(), headers)
    assert status == 200
    assert_valid(validate_chat_stream(data, body, headers=found))
    assert read("chat", data, stream=True).parts == ("Using math.pi",)
    assert "# Tools" not in joined(turns(app.requests[0].json))


@both
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("name", ["claude_code_24-messages-2", "codex-responses-2", "hermes-chat-2"])
async def test_compressed_bodies_are_accepted(name: str, encoding: str):
    request = REQUESTS[name]
    import zlib

    packed = gzip.compress(request.data) if encoding == "gzip" else zlib.compress(request.data)
    headers = (*request.headers, (b"Content-Encoding", encoding.encode()), (b"content-length", b"%d" % len(packed)))
    app = ScriptedUpstream(said("ollama", calling(*request.call)))
    middleware = ToolMiddleware(app, app_protocol="ollama", format="tool_call")
    status, body, found = await fetched(middleware, "POST", PATHS[request.protocol], packed, headers)
    assert status == 200
    assert_valid(VALID[request.protocol](body, request.body, headers=found))
    assert flat(request.protocol, read(request.protocol, body, stream=True).parts) == (WORDS, request.call)
    assert_projected(request, app.requests[0])
    assert "content-encoding" not in app.requests[0].headers
    assert app.requests[0].headers["content-length"] == str(len(app.requests[0].body))


@both
async def test_compressed_count_and_title_requests():
    headers = (*claude_code().headers, (b"content-encoding", b"gzip"))
    app, upstream = proxy(told_json({"input_tokens": 7}), protocol="messages")
    assert await counted(app, gzip.compress(to_count()), headers) == 7
    assert "content-encoding" not in upstream.requests[0].headers
    assert_projected(claude_code(), upstream.requests[0])
    body, headers = opencode_title()
    packed = gzip.compress(compact(body).encode())
    scripted = ScriptedUpstream(said("chat", "ok"))
    headers = (*headers, (b"content-encoding", b"gzip"))
    assert (await fetched(ToolMiddleware(scripted), "POST", PATHS["chat"], packed, headers))[0] == 200
    assert (scripted.requests[0].body, scripted.requests[0].headers["content-encoding"]) == (packed, "gzip")


@both
@pytest.mark.parametrize("name", ["claude_code_12-messages-1", "codex-responses-1"])
async def test_a_body_that_does_not_match_its_encoding_is_rejected(name: str):
    request = REQUESTS[name]
    errors = {"messages": validate_messages_error, "responses": validate_responses_error}
    app = ScriptedUpstream(said("chat", "x"))
    for body, encoding in (
        (request.data, b"gzip"),
        (gzip.compress(request.data)[:900], b"gzip"),
        (request.data, b"br"),
    ):
        headers = (*request.headers, (b"content-encoding", encoding))
        middleware = ToolMiddleware(app, app_protocol="chat", format="tool_call")
        status, data, _ = await fetched(middleware, "POST", PATHS[request.protocol], body, headers)
        assert status in {400, 415}
        assert_valid(errors[request.protocol](data))
    assert app.requests == []


# --- results other than text
# -------------------------------------------------------------------------------------------

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@both
@one
@pytest.mark.parametrize("protocol", ["messages", "responses"])
async def test_a_picture_in_a_result_reaches_an_upstream_with_vision(protocol: str):
    if protocol == "messages":
        request = claude_code(2)
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        blocks = [{"type": "text", "text": "1 x 1"}, {"type": "image", "source": source}]
        request.body["messages"][-1]["content"][0] = {**request.body["messages"][-1]["content"][0], "content": blocks}
    else:
        request = codex(2)
        parts = [
            {"type": "input_text", "text": "1 x 1"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        ]
        request.body["input"][-1] = {**request.body["input"][-1], "output": parts}
    app = ScriptedUpstream(said("chat", calling(*request.call)))
    status, body, _ = await asked(ToolMiddleware(app, app_protocol="chat", format="tool_call"), request)
    assert status == 200
    assert read(protocol, body, stream=True).parts == (WORDS, request.call)
    last = app.requests[0].json["messages"][-1]["content"]
    assert [part["image_url"]["url"] for part in last if part["type"] == "image_url"] == [
        f"data:image/png;base64,{PIXEL}"
    ]
    assert "1 x 1" in last[0]["text"]


@both
@one
async def test_tools_found_by_a_search_are_named():
    request = claude_code(2)
    result = request.body["messages"][-1]["content"][0]
    found = [{"type": "tool_reference", "tool_name": name} for name in ("mcp__db__query", "LSP")]
    request.body["messages"][-1]["content"][0] = {**result, "content": found, "is_error": False}
    _, sent = await answered(request, "chat", "ok")
    assert "mcp__db__query" in turns(sent.json)[-1][1]
    assert "LSP" in turns(sent.json)[-1][1]


# --- references to earlier responses
# -----------------------------------------------------------------------------------


def without_history(request: AgentRequest) -> dict[str, Any]:
    """Return the first request of a client that relies on stored responses: `store` is not false."""
    return {key: value for key, value in request.body.items() if key not in ("store", "include")}


def keyed(key: str) -> tuple[tuple[bytes, bytes], ...]:
    return (JSON, (b"authorization", f"Bearer {key}".encode()))


class ModelClient:
    """Turns of one client with a middleware whose upstream sends the given texts in turn."""

    def __init__(self, *texts: str, upstream: str = "chat") -> None:
        self.upstream = ScriptedUpstream(*(said(upstream, text) for text in texts))
        self.middleware = ToolMiddleware(self.upstream, app_protocol=upstream)  # type: ignore[arg-type]

    async def say(self, body: dict[str, Any], key: str = "one") -> Any:
        """Return the final response object."""
        status, data, headers = await fetched(
            self.middleware, "POST", PATHS["responses"], compact(body).encode(), keyed(key)
        )
        if status != 200:
            assert_valid(validate_responses_error(data))
            return status, json.loads(data)["error"]
        if not body["stream"]:
            return json.loads(data)
        assert_valid(validate_responses_stream(data, body, headers=headers))
        return events(data)[-1]["response"]

    def prompts(self) -> list[list[tuple[str, str]]]:
        return [turns(sent.json) for sent in self.upstream.requests]


LOOKED = ("call", "lookup", {"symbol": "math.pi"})
GOT = ("result", "lookup", "π = 3.14159")


@both
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("upstream", ["chat", "gemini"])
async def test_previous_response_id_replaces_the_history(stream: bool, upstream: str):
    first = {**without_history(pydantic_ai("responses")), "stream": stream}
    talk = ModelClient(
        calling("lookup", '{"symbol":"math.pi"}', "I look it up."), "So it is.", "Yes.", upstream=upstream
    )
    one = await talk.say(first)
    call = one["output"][1]
    more = {"type": "function_call_output", "call_id": call["call_id"], "output": GOT[2]}
    rest = {key: value for key, value in first.items() if key != "input"}
    two = await talk.say({**rest, "previous_response_id": one["id"], "input": [more]})
    assert two["previous_response_id"] == one["id"]
    three = await talk.say({**rest, "previous_response_id": two["id"], "input": "Are you sure?"})
    assert three["output"][0]["content"][0]["text"] == "Yes."
    prompts = talk.prompts()
    assert [history(prompt) for prompt in prompts] == [(), (LOOKED, GOT), (LOOKED, GOT)]
    assert joined(prompts[1]).startswith(joined(prompts[0]))
    assert joined(prompts[2]).startswith(joined(prompts[1]))
    whole = joined(prompts[2])
    words = [pydantic_ai("responses").said[0], "I look it up.", GOT[2], "So it is.", "Are you sure?"]
    assert [whole.count(text) for text in words] == [1] * 5
    assert sorted(words, key=whole.index) == words


@both
async def test_instructions_are_taken_from_the_current_request():
    first = without_history(pydantic_ai("responses"))
    talk = ModelClient("Done.")
    one = await talk.say({**first, "instructions": "Old words."})
    await talk.say({**first, "instructions": "New words.", "previous_response_id": one["id"], "input": "More."})
    whole = joined(talk.prompts()[1])
    assert ("Old words." in whole, "New words." in whole, "Done." in whole) == (False, True, True)


@both
async def test_a_patch_in_a_previous_response_is_restored():
    """Custom calls and calls of a namespace are restored unchanged."""
    text = patch(3_000)
    first = without_history(codex())
    both_calls = "\n".join(
        [calling("apply_patch", compact({"input": text}), "Now."), calling("mcp__docs.lookup", '{"symbol":"π"}', "")]
    )
    talk = ModelClient(both_calls, "Done.")
    one = await talk.say(first)
    custom, other = one["output"][1:]
    assert custom["input"] == text
    results = [
        {"type": "custom_tool_call_output", "call_id": custom["call_id"], "output": "Success."},
        {"type": "function_call_output", "call_id": other["call_id"], "output": "3.14"},
    ]
    rest = {key: value for key, value in first.items() if key != "input"}
    await talk.say({**rest, "previous_response_id": one["id"], "input": results})
    assert history(talk.prompts()[1]) == (
        ("call", "apply_patch", {"input": text}),
        ("call", "mcp__docs.lookup", {"symbol": "π"}),
        ("result", "apply_patch", "Success."),
        ("result", "mcp__docs.lookup", "3.14"),
    )


@both
@pytest.mark.parametrize("referred", [1, 2], ids=["text", "text and call"])
async def test_item_references_are_replaced_by_the_items(referred: int):
    """As sent by the AI SDK: a reference to the reply's text, the call (or a reference to it as well), and the
    result.
    """
    first = without_history(opencode("responses"))
    talk = ModelClient(calling("read", '{"filePath":"/work/π.py"}', "I read it."), "So it is.")
    one = await talk.say(first)
    message, call = one["output"]
    items = [
        {"type": "item_reference", "id": message["id"]},
        {
            "type": "function_call",
            "call_id": call["call_id"],
            "name": call["name"],
            "arguments": call["arguments"],
            "id": call["id"],
        },
    ]
    if referred == 2:
        items[1] = {"type": "item_reference", "id": call["id"]}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "pi = 3"}
    await talk.say({**first, "input": [*first["input"], *items, output]})
    before, after = talk.prompts()
    assert joined(after).startswith(joined(before))
    assert history(after) == (("call", "read", {"filePath": "/work/π.py"}), ("result", "read", "pi = 3"))
    assert joined(after).count("I read it.") == 1
    assert after[-2][1].startswith("I read it.\n<tool_call>")  # a single message, verbatim


@both
async def test_the_aisdk_sends_a_previous_response_and_only_the_result():
    """With `previousResponseId` it still sends references to that reply, which appear in the prompt only once."""
    first = without_history(opencode("responses"))
    talk = ModelClient(calling("read", '{"filePath":"a"}', "I read it."), "So it is.")
    one = await talk.say(first)
    output = {"type": "function_call_output", "call_id": one["output"][1]["call_id"], "output": "pi = 3"}
    await talk.say({**first, "previous_response_id": one["id"], "input": [output]})
    assert history(talk.prompts()[1]) == (("call", "read", {"filePath": "a"}), ("result", "read", "pi = 3"))


@both
async def test_responses_of_another_client_are_not_found():
    first = without_history(pydantic_ai("responses"))
    talk = ModelClient(calling("lookup", '{"symbol":"math.pi"}', "I look it up."), "No.")
    one = await talk.say(first)
    message, call = one["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
    again = {**first, "previous_response_id": one["id"], "input": [output]}
    status, error = await talk.say(again, "two")
    assert (status, error["code"], error["param"]) == (400, "previous_response_not_found", "previous_response_id")
    items = [*first["input"], {"type": "item_reference", "id": call["id"]}, output]
    status, error = await talk.say({**first, "input": items}, "two")
    assert (status, error["param"]) == (400, f"input[{len(first['input'])}].id")
    assert len(talk.upstream.requests) == 1
    # an unknown text may be missing, but no text of the other client is shown
    said_again = [
        *first["input"],
        {"type": "item_reference", "id": message["id"]},
        {"role": "user", "content": "Go on."},
    ]
    assert (await talk.say({**first, "input": said_again}, "two"))["status"] == "completed"
    assert "I look it up." not in joined(talk.prompts()[1])
    assert (await talk.say(again))["status"] == "completed"


@both
async def test_a_response_that_was_not_stored_is_not_found():
    """Codex sends `store: false` and the full history."""
    talk = ModelClient("Done.")
    one = await talk.say(codex().body)
    status, error = await talk.say({**codex().body, "previous_response_id": one["id"], "input": "More."})
    assert (status, error["code"]) == (400, "previous_response_not_found")
