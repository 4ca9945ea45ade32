"""Emulated and native tools, switched by one setting: the same task and the same executions with every upstream."""

import json
import re
from typing import Any

import pytest
from support import dialects
from support.agents import events_of, only, scripted, story
from support.dialects import CLIENTS, PATHS, Ask, read, write
from support.native_replies import gemini_reply, messages_reply, native_call, ollama_reply, responses_reply
from support.sweeps import each

from streamtool import Settings, ToolMiddleware
from streamtool.agent import Agent, ToolCallResult
from streamtool.core.errors import UpstreamError
from streamtool.core.reply import Reason
from streamtool.testing import Recorded, Script, ScriptedUpstream, stream_asgi, text

both = pytest.mark.anyio
CODE = "print('hello world')"
SIGNATURE = "c2lnbmF0dXJlLW9mLWEtdGhvdWdodA=="


class Cascade:
    """Tools of the task, with a log of their executions."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []

    def run_code(self, code: str, language: str = "python") -> str:
        """Executes code in a sandbox."""
        self.done.append(("run_code", code, language))
        return "hello world"

    def set_state(self, key: str, value: Any) -> str:
        """Persists a variable."""
        self.done.append(("set_state", key, value))
        return f"{key} is set"

    @property
    def tools(self) -> list[Any]:
        return [self.run_code, self.set_state]


EXECUTED = [("run_code", CODE, "python"), ("set_state", "result", 42)]
STORY = [("result", "run_code", "hello world"), ("result", "set_state", "result is set"), ("final", "All done.")]


def emulated_chat() -> ScriptedUpstream:
    return scripted(
        f"I'll run the code to test it:\n\n{json.dumps({'tool': 'run_code', 'arguments': {'code': CODE}})}",
        json.dumps({"tool": "set_state", "arguments": {"key": "result", "value": 42}}),
        "All done.",
    )


def native_chat() -> ScriptedUpstream:
    return scripted(
        native_call("run_code", json.dumps({"code": CODE}), id="call_a"),
        native_call("set_state", '{"key": "result", "value": 42}', id="call_b"),
        "All done.",
    )


def emulated_gemini() -> ScriptedUpstream:
    return ScriptedUpstream(
        gemini_reply({"text": json.dumps({"tool": "run_code", "arguments": {"code": CODE}})}),
        gemini_reply({"text": json.dumps({"tool": "set_state", "arguments": {"key": "result", "value": 42}})}),
        gemini_reply({"text": "All done."}),
    )


def native_gemini() -> ScriptedUpstream:
    """Return a Gemini upstream that rejects a returned call without its signature, as Gemini 3 does."""
    replies = [
        gemini_reply({"functionCall": {"name": "run_code", "args": {"code": CODE}}, "thoughtSignature": SIGNATURE}),
        gemini_reply(
            {"functionCall": {"name": "set_state", "args": {"key": "result", "value": 42}}, "thoughtSignature": "b" * 9}
        ),
        gemini_reply({"text": "All done."}),
    ]

    def say(request: Recorded) -> Script:
        parts = [part for content in request.json["contents"] for part in content["parts"]]
        calls = [part for part in parts if "functionCall" in part]
        if any("thoughtSignature" not in part for part in calls):
            error = {
                "code": 400,
                "message": "Function call is missing a thought_signature",
                "status": "INVALID_ARGUMENT",
            }
            return Script((json.dumps({"error": error}).encode(),), 400, "application/json")
        return replies[len(calls)]

    return ScriptedUpstream(say)


def native_messages() -> ScriptedUpstream:
    return ScriptedUpstream(
        messages_reply({"type": "tool_use", "id": "toolu_a", "name": "run_code", "input": {"code": CODE}}),
        messages_reply(
            {"type": "tool_use", "id": "toolu_b", "name": "set_state", "input": {"key": "result", "value": 42}}
        ),
        messages_reply({"type": "text", "text": "All done."}),
    )


def native_ollama() -> ScriptedUpstream:
    return ScriptedUpstream(
        ollama_reply(tool_calls=[{"function": {"name": "run_code", "arguments": {"code": CODE}}}]),
        ollama_reply(tool_calls=[{"function": {"name": "set_state", "arguments": {"key": "result", "value": 42}}}]),
        ollama_reply(content="All done."),
    )


def native_responses() -> ScriptedUpstream:
    def call(id: str, name: str, **arguments: Any) -> Script:
        item = {"type": "function_call", "id": f"fc_{id}", "call_id": f"call_{id}", "name": name}
        return responses_reply({**item, "arguments": json.dumps(arguments), "status": "completed"})

    said = {"type": "output_text", "text": "All done.", "annotations": []}
    return ScriptedUpstream(
        call("a", "run_code", code=CODE),
        call("b", "set_state", key="result", value=42),
        responses_reply({"type": "message", "id": "msg_1", "role": "assistant", "content": [said]}),
    )


UPSTREAMS = {
    ("chat", "emulate"): emulated_chat,
    ("chat", "native"): native_chat,
    ("gemini", "emulate"): emulated_gemini,
    ("gemini", "native"): native_gemini,
    ("gemini", "rescue"): native_gemini,
    ("gemini", "auto"): native_gemini,
    **{
        (protocol, mode): made
        for mode in ("native", "rescue", "auto")
        for protocol, made in (
            ("messages", native_messages),
            ("ollama", native_ollama),
            ("responses", native_responses),
        )
    },
}


@both
@each(("protocol", "mode"), UPSTREAMS)
async def test_both_modes_execute_the_same_calls(protocol, mode):
    cascade = Cascade()
    upstream = UPSTREAMS[protocol, mode]()
    events = await events_of(
        Agent(upstream, cascade.tools, protocol=protocol, mode=mode), "Write and test Python code for this problem."
    )
    assert cascade.done == EXECUTED
    assert story(events) == STORY
    assert events[-1].reason is Reason.STOP
    first = upstream.requests[0].json
    assert ("tools" in first) == (mode != "emulate")
    assert (
        "Executes code in a sandbox." in json.dumps({key: value for key, value in first.items() if key != "tools"})
    ) == (mode == "emulate")


NATIVE_CALLS = {
    "chat": native_call("run_code", "{}"),
    "messages": messages_reply({"type": "tool_use", "id": "toolu_a", "name": "run_code", "input": {}}),
    "responses": responses_reply(
        {"type": "function_call", "id": "fc_a", "call_id": "call_a", "name": "run_code", "arguments": "{}"}
    ),
    "ollama": ollama_reply(tool_calls=[{"function": {"name": "run_code", "arguments": {}}}]),
    "gemini": gemini_reply({"functionCall": {"name": "run_code", "args": {}}}),
}
DENIED = "I'm sorry, but I don't have access to any tools."


@both
@pytest.mark.parametrize("protocol", NATIVE_CALLS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_native_model_that_denies_its_tools_is_retried(protocol, stream):
    kind = "application/x-ndjson" if protocol == "ollama" else "text/event-stream"
    denial = Script(tuple(getattr(dialects, protocol)([DENIED[:9], DENIED[9:]], "stop")), 200, kind)
    upstream = ScriptedUpstream(denial, NATIVE_CALLS[protocol])
    app = ToolMiddleware(upstream, mode="native", app_protocol=protocol)
    ask = Ask((("user", "Run it."),), (("run_code", "Runs.", {"type": "object"}),), stream=stream)
    client = (
        "messages" if protocol == "chat" else "chat"
    )  # with the protocol of the upstream, its reply passes unchanged
    async with stream_asgi(app, PATHS[client], body=json.dumps(write(client, ask)).encode()) as reply:
        got = read(client, await reply.body(), stream=stream)
    assert [part[0] for part in got.parts] == ["run_code"]
    assert len(upstream.requests) == 2
    asked = json.dumps(upstream.requests[1].json)
    assert "You do have tools in this conversation." in asked
    assert "in the form that was shown" not in asked
    assert "Runs." in asked


@both
async def test_a_native_reply_that_was_shown_is_not_retried():
    said = f"Let me see. {DENIED}"
    upstream = scripted(said, "never")
    app = ToolMiddleware(upstream, mode="native", app_protocol="chat")
    ask = Ask((("user", "Run it."),), (("run_code", "Runs.", {"type": "object"}),))
    async with stream_asgi(app, PATHS["messages"], body=json.dumps(write("messages", ask)).encode()) as reply:
        assert read("messages", await reply.body(), stream=True).parts == (said,)
    assert len(upstream.requests) == 1


@both
@pytest.mark.parametrize("protocol", dialects.UPSTREAMS)
async def test_every_upstream_protocol_works(protocol):
    """The model calls, answers, is truncated within a call, and finally dies."""
    kind = "application/x-ndjson" if protocol == "ollama" else "text/event-stream"
    says = getattr(dialects, protocol)
    call = '<tool_call>{"name": "run_code", "arguments": {"code": "1"}}</tool_call>'
    ends = [([call], "stop"), (["All ", "done."], "stop"), ([call[:-25]], "length"), (["All "], "die")]
    upstream = ScriptedUpstream(*(Script(tuple(says(*end)), 200, kind) for end in ends))
    agent = Agent(upstream, Cascade().tools, protocol=protocol)
    assert story(await events_of(agent)) == [STORY[0], ("final", "All done.")]
    with pytest.raises(UpstreamError, match="closed the connection"):
        await agent.ask("Go.")
    # Both replies that were not finished; the other servers are not known to continue one.
    resumptions = 4 if protocol == "completions" else 0
    assert len(upstream.requests) == 4 + resumptions


@both
async def test_a_signature_is_returned_with_its_call_and_nowhere_else():
    upstream = native_gemini()
    async with Agent(upstream, Cascade().tools, protocol="gemini", mode="native").run("Go.") as run:
        final = await run.final()
    last = [part for content in upstream.requests[2].json["contents"] for part in content["parts"]]
    assert [part.get("thoughtSignature") for part in last if "functionCall" in part] == [SIGNATURE, "b" * 9]
    assert not any("thoughtSignature" in part for part in last if "functionCall" not in part)
    # a caller who continues the conversation returns it too
    made = final.messages[0]["tool_calls"][0]
    assert made["extra_content"] == {"google": {"thought_signature": SIGNATURE}}
    again = [{"role": "user", "content": "Go."}, *final.messages, {"role": "user", "content": "And?"}]
    assert await Agent(upstream, Cascade().tools, protocol="gemini", mode="native").ask(again) == "All done."


@both
async def test_gemini_over_chat_completions_gets_its_signature_back():
    extra = {"google": {"thought_signature": SIGNATURE}}

    def say(request: Recorded) -> Script:
        calls = [call for m in request.json["messages"] for call in m.get("tool_calls") or ()]
        assert all(call["extra_content"] == extra for call in calls)
        if calls:
            return text("All done.")
        return native_call("run_code", json.dumps({"code": CODE}), extra_content=extra)

    events = await events_of(Agent(ScriptedUpstream(say), Cascade().tools, mode="native"))
    assert [event.text for event in only(events, ToolCallResult)] == ["hello world"]
    assert events[-1].text == "All done."


@both
@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat_completions_client_receives_the_signature_and_may_return_it(stream):
    app = ToolMiddleware(native_gemini(), settings=Settings(mode="native", app_protocol="gemini"))
    tool = {"type": "function", "function": {"name": "run_code", "parameters": {"type": "object"}}}
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    body = {"model": "m", "messages": messages, "tools": [tool], "stream": stream}
    async with stream_asgi(app, body=json.dumps(body).encode()) as reply:
        data = await reply.body()
    if stream:
        chunks = [json.loads(line[6:]) for line in data.split(b"\n\n") if line.startswith(b"data: {")]
        calls = [call for c in chunks for choice in c["choices"] for call in choice["delta"].get("tool_calls", ())]
        made = {**calls[0], "function": {"name": "run_code", "arguments": json.dumps({"code": CODE})}}
    else:
        made = json.loads(data)["choices"][0]["message"]["tool_calls"][0]
    assert made["extra_content"] == {"google": {"thought_signature": SIGNATURE}}
    messages += [
        {"role": "assistant", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": made["id"], "content": "hello world"},
    ]
    async with stream_asgi(app, body=json.dumps(body).encode()) as reply:
        assert await reply.head() == 200


SEVERAL = [("run_code", {"code": "1"}), ("run_code", {"code": "2"})]


def signing(*replies: Script) -> ScriptedUpstream:
    """Return a Gemini that rejects calls of the current turn if the first call of a reply is returned unsigned."""

    def say(request: Recorded) -> Script:
        made = [c["parts"] for c in request.json["contents"] if any("functionCall" in part for part in c["parts"])]
        firsts = [next(part for part in parts if "functionCall" in part) for parts in made]
        if any(part.get("thoughtSignature") != SIGNATURE for part in firsts):
            return Script((b'{"error": {"message": "missing a thought_signature"}}',), 400, "application/json")
        return replies[len(made)]

    return ScriptedUpstream(say)


def calling(*calls: tuple[str, dict[str, str]]) -> Script:
    parts: list[dict[str, object]] = [{"functionCall": {"name": name, "args": args}} for name, args in calls]
    return gemini_reply({**parts[0], "thoughtSignature": SIGNATURE}, *parts[1:])


MADE = re.compile(rb'"((?:call|toolu)_[A-Za-z0-9]{24})"')


async def said(
    app: Any, client: str, turns: tuple[Any, ...], *, key: bytes = b"mine", **fields: Any
) -> tuple[Any, Any]:
    """Return the client's reply, and the ids of its calls."""
    stream = fields.pop("stream", True)
    ask = Ask((("user", "Go."), *turns), tools=(("run_code", "Runs.", {"type": "object"}),), stream=stream)
    store = {"store": True} if client == "responses" else {}
    body = json.dumps({**write(client, ask), **store, **fields}).encode()
    async with stream_asgi(app, PATHS[client], body=body, headers=[(b"authorization", key)]) as reply:
        data = await reply.body()
        stream &= await reply.head() == 200
    return read(client, data, stream=stream), [id.decode() for id in dict.fromkeys(MADE.findall(data))]


def history(ids: list[str]) -> tuple[Any, ...]:
    made = [("call", id, name, args) for id, (name, args) in zip(ids, SEVERAL, strict=True)]
    return (*made, *(("result", id, "ok") for id in ids))


@both
@pytest.mark.parametrize("mode", ["native", "rescue"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_signature_is_stored_for_a_protocol_without_a_field_for_it(client, stream, mode):
    upstream = signing(calling(*SEVERAL), gemini_reply({"text": "All done."}))
    app = ToolMiddleware(upstream, settings=Settings(mode=mode, app_protocol="gemini"))
    got, ids = await said(app, client, (), stream=stream)
    assert [(name, json.loads(args)) for name, args in got.parts] == SEVERAL
    got, _ = await said(app, client, history(ids), stream=stream)
    assert (got.parts, got.error) == (("All done.",), None)
    parts = [part for content in upstream.requests[1].json["contents"] for part in content["parts"]]
    assert [part.get("thoughtSignature") for part in parts if "functionCall" in part] == [SIGNATURE, None]


@both
async def test_a_signature_is_stored_only_for_the_client_that_received_the_call_and_not_with_store_false():
    upstream = signing(calling(*SEVERAL), gemini_reply({"text": "All done."}))
    app = ToolMiddleware(upstream, settings=Settings(mode="native", app_protocol="gemini"))
    _, ids = await said(app, "responses", ())
    got, _ = await said(app, "responses", history(ids), key=b"another")
    assert "missing a thought_signature" in got.error
    _, ids = await said(app, "responses", (), store=False)
    got, _ = await said(app, "responses", history(ids))
    assert "missing a thought_signature" in got.error


@both
async def test_gemini_over_chat_completions_gets_the_stored_signature():
    extra = {"google": {"thought_signature": SIGNATURE}}
    made = native_call("run_code", '{"code": "1"}', id="call_" + "a1" * 12, extra_content=extra)
    upstream = scripted(made, "All done.")
    app = ToolMiddleware(upstream, settings=Settings(mode="native", app_protocol="chat"))
    _, [id] = await said(app, "messages", ())
    got, _ = await said(app, "messages", (("call", id, "run_code", {"code": "1"}), ("result", id, "ok")))
    assert got.parts == ("All done.",)
    [call] = upstream.requests[1].json["messages"][1]["tool_calls"]
    assert call["extra_content"] == extra


@both
async def test_auto_falls_back_to_emulation_if_the_upstream_does_not_support_tools():
    refusal = Script((b'{"error": {"message": "this model does not support tools"}}',), 400, "application/json")
    call = '<tool_call>{"name": "run_code", "arguments": {"code": "1"}}</tool_call>'
    upstream = ScriptedUpstream(refusal, text(call), text("All done."))
    cascade = Cascade()
    assert await Agent(upstream, cascade.tools, mode="auto").ask("Go.") == "All done."
    assert cascade.done == [("run_code", "1", "python")]
    assert ["tools" in request.json for request in upstream.requests] == [True, False, False]


@both
async def test_tool_names_invalid_for_a_native_upstream_stay_distinct():
    from streamtool.agent import tool

    def one() -> str:
        return "one"

    def two() -> str:
        return "two"

    names = ["a.b", "a_b", "a/b", "x" * 70, "x" * 64 + "y", "naïve"]
    tools = [tool(one if i % 2 else two, name=name) for i, name in enumerate(names)]
    upstream = scripted("ok")
    agent = Agent(upstream, tools, mode="native")
    await agent.ask("Go.")
    offered = [entry["function"]["name"] for entry in upstream.requests[0].json["tools"]]
    assert offered == ["a_b_2", "a_b", "a_b_3", "x" * 64, "x" * 62 + "_2", "na_ve"]
    upstream = scripted(native_call("a_b_3", "{}"), "ok")
    events = await events_of(Agent(upstream, tools, mode="native"))
    assert [(event.name, event.text) for event in only(events, ToolCallResult)] == [("a/b", "two")]
