"""A call that the client requires is forced by the strongest method that the upstream is configured to support."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from support.dialects import CLIENTS, PATHS, UPSTREAMS, Ask, Got, read, refusal, said, write
from support.gbnf import Grammar
from support.sweeps import alternating, each

from statemachine import Call
from statemachine import write as written
from streamtool.core.conversation import Forcing
from streamtool.core.errors import SettingsError
from streamtool.exchange.record import Record
from streamtool.filters import Prefilled
from streamtool.middleware import ToolMiddleware
from streamtool.policy import refused_part
from streamtool.protocols.table import PROTOCOLS
from streamtool.settings import LimitSettings, Settings
from streamtool.store.capabilities import CapabilityCache
from streamtool.testing import Script, ScriptedUpstream, stream_asgi

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS = (("ping", "Pings.", SCHEMA), ("pong", "Pongs.", SCHEMA))
ASK = Ask((("user", "Ping it."),), TOOLS)
NAMED = evolve(ASK, choice="ping")
REQUIRED = evolve(ASK, choice="required")
CALL = '<tool_call>\n{"name": "ping", "arguments": {"x": 1}}\n</tool_call>'
OBJECT = '{"name": "ping", "arguments": {"x": 1}}'
CALLED = (("ping", '{"x": 1}'),)
LEAD = '<tool_call>\n{"name": "'
BEGIN = LEAD + 'ping", "arguments":'

both = pytest.mark.anyio
clients = each("client", CLIENTS)
streamed = each("stream", [True, False], ids=["streamed", "whole"])

WAYS = [(upstream, way) for upstream in UPSTREAMS for way in ("auto", *PROTOCOLS[upstream].forcing)]
AUTO = {"chat": "schema", "messages": "prompt", "ollama": "schema", "gemini": "prompt", "completions": "prefill",
        "responses": "prompt"}  # fmt: skip
FIELDS = {
    "response_format", "grammar", "grammar_lazy", "grammar_triggers", "structured_outputs", "format", "output_config",
    "continue_final_message", "preserved_tokens", "text",
}  # fmt: skip
"""Fields of all protocols that force a call."""


class ModelClient:
    """Sends requests to one upstream and records them and their results."""

    def __init__(self, upstream: str, forcing: str, *replies: str | Script, **settings: Any) -> None:
        self.protocol = upstream
        self.upstream = ScriptedUpstream(*(said(upstream, one) if isinstance(one, str) else one for one in replies))
        self.records: list[Record] = []
        self.app = ToolMiddleware(
            self.upstream,
            settings=Settings(app_protocol=upstream, app_forcing=forcing, **{"format": "tool_call", **settings}),
            on_exchange=self.records.append,
        )

    async def ask(self, client: str, ask: Ask, **fields: Any) -> Got:
        body = json.dumps({**write(client, ask), **fields}).encode()
        async with stream_asgi(self.app, PATHS[client], body=body) as reply:
            data = await reply.body()
            assert reply.status == 200, data
        got = read(client, data, stream=ask.stream)
        parts = tuple((part[0], json.dumps(json.loads(part[1]))) if len(part) == 2 else part for part in got.parts)
        return evolve(got, parts=parts)

    def sent(self, attempt: int = -1) -> Any:
        return self.upstream.requests[attempt].json

    def forcing(self, attempt: int = -1) -> dict[str, Any]:
        """Return the fields of a request that force a call."""
        sent = self.sent(attempt)
        found = {key: value for key, value in sent.items() if key in FIELDS}
        config = sent.get("generationConfig", {})
        return found | {key: value for key, value in config.items() if key.startswith("response")}

    def last(self, attempt: int = -1) -> tuple[str, str]:
        """Return role and text of the last message; for completions, the end of the prompt."""
        sent = self.sent(attempt)
        if "prompt" in sent:
            head, _, text = sent["prompt"].rpartition("<|im_start|>assistant\n")
            return ("assistant", text) if text else ("user", head)
        last = (sent.get("messages") or sent.get("input") or sent["contents"])[-1]
        text = last.get("content") or "".join(part["text"] for part in last["parts"])
        return last["role"], text


def call_schema(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, "arguments": SCHEMA},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


ONE = call_schema("ping")
TWO = {"anyOf": [call_schema("ping"), call_schema("pong")]}


def expected(upstream: str, way: str, schema: Any) -> Mapping[str, Any]:
    """Return the literal fields expected for a forced call."""
    named = {"response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}}
    match upstream, way:
        case "chat", "prefill":
            return {"continue_final_message": True}
        case (("chat" | "completions"), "schema"):
            return named
        case _, "guided":
            return {"structured_outputs": {"json": schema}}
        case "messages", "schema":
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        case "responses", "schema":
            return {"text": {"format": {"type": "json_schema", "name": "call", "schema": schema}}}
        case "ollama", "schema":
            return {"format": schema}
        case "gemini", "schema":
            return {"responseMimeType": "application/json", "responseJsonSchema": schema}
    return {}


@both
@clients
@streamed
@each(("upstream", "forcing"), WAYS)
@alternating
async def test_a_call_is_forced(client: str, stream: bool, upstream: str, forcing: str):
    way = AUTO[upstream] if forcing == "auto" else forcing
    for ask, beginning, schema in ((NAMED, BEGIN, ONE), (REQUIRED, LEAD, TWO)):
        rest = CALL[len(beginning) :]
        talk = ModelClient(upstream, forcing, {"prefill": rest, "schema": OBJECT, "guided": OBJECT}.get(way, CALL))
        got = await talk.ask(client, evolve(ask, stream=stream))
        assert (got.parts, got.reason) == (CALLED, "calls")
        assert (talk.records[0].forced, talk.records[0].attempts) == (way, ())
        if way in ("grammar", "structural_tag"):
            continue  # tested below
        assert talk.forcing() == expected(upstream, way, schema)
        if way == "prefill":
            assert talk.last() == ("assistant", beginning)
        else:
            assert talk.last()[0] == "user"
            assert "For this reply" in talk.last()[1]


@both
@clients
@streamed
@each("upstream", ["chat", "completions"])
@each("choice", ["ping", "required", "auto", "none"])
@alternating
async def test_a_structural_tag_leaves_free_text_free(client: str, stream: bool, upstream: str, choice: str):
    forced = choice in ("ping", "required")
    talk = ModelClient(
        upstream, "structural_tag", CALL if forced else "It is well." if choice == "none" else f"So.\n{CALL}"
    )
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream, choice))
    assert got.parts == {"none": ("It is well.",), "auto": ("So.", *CALLED)}.get(choice, CALLED)
    assert talk.records[0].forced == ("" if choice == "none" else "structural_tag")
    if choice == "none":
        assert talk.forcing() == {}
        return
    tags = [
        {
            "type": "tag",
            "begin": f'<tool_call>\n{{"name": "{name}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": SCHEMA},
            "end": "}\n</tool_call>",
        }
        for name in (("ping",) if choice == "ping" else ("ping", "pong"))
    ]
    form = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}
    form |= {"at_least_one": forced, "stop_after_first": False}
    assert talk.forcing() == {"response_format": {"type": "structural_tag", "format": form}}


@both
@clients
@pytest.mark.parametrize("choice", ["ping", "required", "auto", "none"])
@alternating
async def test_a_grammar_applies_from_the_start_or_from_a_trigger(client: str, choice: str):
    """llama.cpp supports triggers of a grammar in completions; in chat the grammar itself allows text."""
    ask = evolve(ASK, choice=choice)
    for upstream in ("chat", "completions"):
        talk = ModelClient(upstream, "grammar", "Well." if choice == "none" else CALL)
        got = await talk.ask(client, ask)
        assert got.parts == (("Well.",) if choice == "none" else CALLED)
        assert talk.records[0].forced == ("" if choice == "none" else "grammar")
        fields = talk.forcing()
        if choice == "none":
            assert fields == {}
            continue
        grammar = Grammar(fields.pop("grammar"))
        assert grammar.accepts(CALL)
        assert grammar.accepts(f"So.\n{CALL}") == grammar.accepts("Well.") == (upstream == "chat" and choice == "auto")
        assert grammar.accepts(CALL.replace("ping", "pong")) == (choice != "ping")
        lazy = {
            "grammar_lazy": True,
            "grammar_triggers": [{"type": 1, "value": "<tool_call>"}],
            "preserved_tokens": ["<tool_call>"],
        }
        assert fields == (lazy if upstream == "completions" and choice == "auto" else {})


@both
@clients
@each(("upstream", "forcing"), WAYS)
@alternating
async def test_an_optional_call_is_not_forced(client: str, upstream: str, forcing: str):
    if forcing in ("structural_tag", "grammar"):
        return
    talk = ModelClient(upstream, forcing, "It is well.")
    assert (await talk.ask(client, ASK)).parts == ("It is well.",)
    assert talk.forcing() == {}
    assert talk.records[0].forced == ""
    assert talk.last()[0] == "user"


@both
@clients
async def test_a_prefill_repeated_by_the_model_is_read_once(client: str):
    for reply in (CALL, f"\n{CALL}", '<tool_call>{"name":"ping","arguments":{"x":1}}</tool_call>'):
        for ask in (NAMED, REQUIRED):
            talk = ModelClient("completions", "prefill", reply)
            assert (await talk.ask(client, ask)).parts == CALLED
            assert talk.records[0].attempts == ()


@both
@clients
@streamed
@each("reply", ["", "No, thank you.", "  \n"])
@alternating
async def test_a_missing_forced_call_is_retried(client: str, stream: bool, reply: str):
    talk = ModelClient("chat", "prefill", reply, CALL[len(BEGIN) :])
    got = await talk.ask(client, evolve(NAMED, stream=stream))
    assert (got.parts, got.reason) == (CALLED, "calls")
    assert talk.records[0].attempts == ("required call missing",)
    assert [talk.last(i) for i in (0, 1)] == [("assistant", BEGIN)] * 2
    first, second = (talk.sent(i)["messages"] for i in (0, 1))
    assert second[0] == first[0]  # the tool prompt
    assert "tool call that is required" in json.dumps(second[-2])


@both
async def test_a_call_that_cannot_be_forced_is_reported_as_unmet():
    talk = ModelClient("chat", "schema", "I would rather not.")
    got = await talk.ask("chat", NAMED)
    assert (got.parts, got.reason) == (("I would rather not.",), "stop")
    assert (talk.records[0].unmet, talk.records[0].forced) == ("required call missing", "schema")
    assert len(talk.upstream.requests) == 3


@both
@pytest.mark.parametrize("format", ["invoke", "react", "object", "qwen3_coder", "mistral", "pythonic", "functionary"])
async def test_any_format_can_be_prefilled(format: str):
    whole = written([Call("ping", '{"x": 1}')], format)
    talk = ModelClient("messages", "prefill", "", format=format)
    await talk.ask("messages", NAMED)
    role, beginning = talk.last()
    assert role == "assistant"
    assert whole.startswith(beginning)
    assert beginning == beginning.rstrip()
    for reply in (whole[len(beginning) :], whole):
        again = ModelClient("messages", "prefill", reply, format=format)
        assert (await again.ask("messages", NAMED)).parts == CALLED


@both
@clients
async def test_the_prompt_stays_a_prefix_of_the_next_one(client: str):
    """Forcing adds nothing to the tool prompt or the history."""
    turns = (*ASK.turns, ("call", "call_1", "ping", {"x": 1}), ("result", "call_1", "pong"))
    for forcing in ("prompt", "prefill", "schema", "structural_tag", "grammar"):
        talk = ModelClient("chat", forcing, CALL)
        await talk.ask(client, ASK)
        await talk.ask(client, NAMED)
        await talk.ask(client, evolve(ASK, turns=turns))
        free, forced, after = (talk.sent(i)["messages"] for i in range(3))
        assert forced[0] == free[0] == after[0]
        assert after[: len(free)] == free
        assert forced[1]["content"].startswith(free[1]["content"])


# --- unsupported by the upstream

METHODS = {
    "schema": "'response_format' of type 'json_schema' is not supported with this model.",
    "guided": '[{"type": "extra_forbidden", "loc": ["body", "structured_outputs"], "msg": "Extra inputs are not permitted"}]',
    "structural_tag": "body.response_format.type: Input should be 'text', 'json_object' or 'json_schema'",
    "grammar": "Unrecognized request argument supplied: grammar",
    "prefill": "This model does not support assistant message prefill. The conversation must end with a user message.",
}
"""Error messages that decline a method."""
CONSTRAINTS = {
    "schema": "Invalid schema for response_format 'call': In context=(), 'uniqueItems' is not permitted.",
    "guided": 'Grammar error: Unimplemented keys: ["propertyNames"]',
    "structural_tag": "The provided JSON schema contains features not supported by xgrammar.",
    "grammar": "Failed to parse grammar",
}
"""Error messages that decline one constraint."""
OTHER = evolve(NAMED, tools=(("ping", "Pings.", {"type": "object", "properties": {"y": {"type": "string"}}}),))
ANY_OBJECT = {"type": "object"}


def refused(message: str, status: int = 400) -> Script:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return Script((json.dumps(body).encode(),), status, "application/json")


def answers(way: str) -> str:
    return OBJECT if way in ("schema", "guided") else CALL


@both
@clients
@streamed
@each("way", METHODS)
@alternating
async def test_a_declined_method_is_left_out_and_remembered(client: str, stream: bool, way: str):
    talk = ModelClient("chat", way, refused(METHODS[way]), CALL)
    now = [0.0]
    talk.app.services = evolve(talk.app.services, capabilities=CapabilityCache(lambda: now[0]))
    for ask in (NAMED, OTHER):
        got = await talk.ask(client, evolve(ask, stream=stream))
        assert (got.parts, got.reason) == (CALLED, "calls")
    assert [record.attempts for record in talk.records] == [("forcing unsupported",), ()]
    assert [record.forced for record in talk.records] == ["prompt", "prompt"]
    assert [bool(talk.forcing(i)) for i in range(3)] == [True, False, False]
    assert [talk.last(i)[0] for i in (1, 2)] == ["user", "user"]
    now[0] = 601.0
    await talk.ask(client, NAMED)
    assert talk.forcing(3)


@both
@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("long", [False, True], ids=["quoted", "too long to be searched"])
async def test_a_declined_method_is_not_remembered_if_the_error_may_quote_the_request(way: str, long: bool):
    said = "Hi. " * 70_000 if long else METHODS[way]
    talk = ModelClient("chat", way, refused(METHODS[way]), CALL, refused(METHODS[way]), CALL)
    quoted = evolve(NAMED, turns=(*NAMED.turns[:-1], ("user", said)))
    for ask in (quoted, NAMED):
        assert (await talk.ask("chat", ask)).parts == CALLED
    assert [bool(talk.forcing(i)) for i in range(4)] == [True, False, True, False]


@both
@clients
@streamed
@each("way", CONSTRAINTS)
@alternating
async def test_a_declined_schema_becomes_any_object_for_this_constraint_only(client: str, stream: bool, way: str):
    talk = ModelClient("chat", way, refused(CONSTRAINTS[way]), answers(way))
    now = [0.0]
    talk.app.services = evolve(talk.app.services, capabilities=CapabilityCache(lambda: now[0]))
    for _ in range(2):
        got = await talk.ask(client, evolve(NAMED, stream=stream))
        assert (got.parts, got.reason) == (CALLED, "calls")
    assert [record.attempts for record in talk.records] == [("forcing refused",), ()]
    assert [record.forced for record in talk.records] == [way, way]
    full, simple, again = (talk.forcing(i) for i in range(3))
    assert simple == again != full
    if way in ("schema", "guided"):
        plain_call = evolve_schema(ONE, ANY_OBJECT)
        assert simple == expected("chat", way, plain_call)
    await talk.ask(client, OTHER)
    assert talk.forcing(3) not in ({}, simple)
    now[0] = 601.0
    await talk.ask(client, NAMED)
    assert talk.forcing(4) == full


def evolve_schema(call: dict[str, Any], arguments: Any) -> dict[str, Any]:
    return {**call, "properties": {**call["properties"], "arguments": arguments}}


@both
@pytest.mark.parametrize("way", CONSTRAINTS)
async def test_a_constraint_declined_twice_is_left_out(way: str):
    talk = ModelClient("chat", way, refused(CONSTRAINTS[way]), refused(CONSTRAINTS[way], 500), CALL)
    for _ in range(2):
        assert (await talk.ask("chat", NAMED)).parts == CALLED
    assert [record.attempts for record in talk.records] == [("forcing refused", "forcing refused"), ()]
    assert [record.forced for record in talk.records] == ["prompt", "prompt"]
    assert [bool(talk.forcing(i)) for i in range(4)] == [True, True, False, False]


@both
@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize(
    ("status", "message"), [(500, "'list' object has no attribute 'get'"), (400, "odd"), (422, "")]
)
async def test_an_unexplained_rejection_is_followed_by_a_request_without_the_constraint(
    choice: str, status: int, message: str
):
    talk = ModelClient("chat", "structural_tag", refused(message, status), CALL)
    for _ in range(2):
        assert (await talk.ask("chat", evolve(NAMED, choice=choice))).parts == CALLED
    assert [record.attempts for record in talk.records] == [("forcing refused",), ()]
    await talk.ask("chat", evolve(OTHER, choice=choice))
    assert [bool(talk.forcing(i)) for i in range(4)] == [True, False, True, True]


async def status_of(talk: ModelClient, ask: Ask) -> tuple[int, bytes]:
    async with stream_asgi(talk.app, body=json.dumps(write("chat", ask)).encode()) as reply:
        return await reply.head(), await reply.body()


@both
async def test_a_rejection_without_a_constraint_too_is_reported_and_not_remembered():
    talk = ModelClient("chat", "schema", refused("odd"), refused("temperature is too high"), OBJECT)
    status, body = await status_of(talk, NAMED)
    assert (status, b"temperature is too high" in body) == (400, True)
    assert talk.records[0].attempts == ("forcing refused",)
    assert (await talk.ask("chat", NAMED)).parts == CALLED
    assert [bool(talk.forcing(i)) for i in range(3)] == [True, False, True]


@both
@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
async def test_an_unrelated_rejection_is_reported_immediately(status: int):
    talk = ModelClient("chat", "schema", refused("no", status))
    assert (await status_of(talk, NAMED))[0] == status
    assert len(talk.upstream.requests) == 1
    talk = ModelClient("chat", "schema", refusal("chat"))
    assert (await status_of(talk, NAMED))[0] == 429
    assert len(talk.upstream.requests) == 1


@pytest.mark.parametrize(("way", "message"), METHODS.items())
def test_an_error_message_identifies_the_declined_method(way: Any, message: str):
    assert refused_part(way, 400, message) == "method"
    assert refused_part(way, 429, message) is None
    assert refused_part(way, 400, "the model is overloaded") == "unclear"
    assert refused_part(way, 404, "no such model") is None


@pytest.mark.parametrize(
    ("way", "message", "part"),
    [
        *((way, message, "constraint") for way, message in CONSTRAINTS.items()),
        ("schema", "This response_format type is unavailable now", "method"),
        ("schema", 'Invalid JSON payload received. Unknown name "responseJsonSchema" at generation_config', "method"),
        ("schema", "This model does not support response format `json_schema`.", "method"),
        ("schema", "Structured outputs are not supported", "method"),
        ("schema", "1 validation error\nresponse_format\n  Extra inputs are not permitted", "method"),
        (
            "schema",
            "output_config.format.schema: For 'integer' type, property 'minimum' is not supported",
            "constraint",
        ),
        ("schema", "output_config.format: Extra inputs are not permitted", "method"),
        ("schema", "prefixItems is not supported in response_format", "constraint"),
        ("guided", "Failed to transform json schema into a grammar: oops", "constraint"),
        ("guided", "Extra inputs are not permitted: temperature_2", "unclear"),
        ("structural_tag", "Invalid structural tag specification.", "constraint"),
        ("structural_tag", "Unknown parameter: 'response_format'.", "method"),
        ("grammar", "Failed to initialize samplers: failed to parse grammar", "constraint"),
        ("grammar", "unknown field grammar", "method"),
        ("grammar", "JSON schema conversion failed:\nPattern must start with '^' and end with '$'", "constraint"),
        ("prefill", "Invalid schema", "unclear"),
    ],
)
def test_an_error_message_identifies_the_declined_part(way: Any, message: str, part: str):
    assert refused_part(way, 400, message) == part


# --- left unchanged


@both
async def test_a_client_that_constrains_the_model_itself_is_not_overridden():
    own = {"type": "json_schema", "json_schema": {"name": "own", "schema": {"type": "object"}}}
    for fields in ({"response_format": own}, {"grammar": 'root ::= "x"'}, {"structured_outputs": {"choice": ["a"]}}):
        talk = ModelClient("chat", "guided", CALL)
        await talk.ask("chat", NAMED, **fields)
        assert talk.records[0].forced == "prompt"
        assert talk.forcing() == ({} if "response_format" in fields else fields)


@both
async def test_native_tools_are_not_forced():
    for mode in ("native", "rescue"):
        talk = ModelClient("chat", "schema", CALL, mode=mode)
        await talk.ask("messages", NAMED)
        assert talk.forcing() == {}
        assert talk.records[0].forced == ""


@both
async def test_only_the_allowed_tools_are_in_the_constraint():
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "pong"}}]},
    }
    talk = ModelClient("chat", "schema", OBJECT.replace("ping", "pong"))
    got = await talk.ask("chat", ASK, tool_choice=allowed)
    assert got.parts == (("pong", '{"x": 1}'),)
    assert talk.forcing() == expected("chat", "schema", call_schema("pong"))


@both
async def test_raw_text_is_a_string_in_an_object():
    tool = {"type": "custom", "custom": {"name": "run"}}
    talk = ModelClient("chat", "schema", '{"name": "run", "arguments": {"input": "ls"}}')
    body = {**write("chat", ASK), "tools": [tool], "tool_choice": "required"}
    async with stream_asgi(talk.app, body=json.dumps(body).encode()) as reply:
        assert b'"input":"ls"' in (await reply.body()).replace(b" ", b"")
    schema = talk.forcing()["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["arguments"]["properties"] == {"input": {"type": "string"}}


@both
async def test_a_single_object_is_read_whatever_the_formats():
    for format in ("tool_call", "invoke", "mistral"):
        talk = ModelClient("ollama", "auto", OBJECT, format=format, formats=[format])
        assert (await talk.ask("chat", NAMED)).parts == CALLED


def test_contradictory_settings_are_reported():
    upstream = {"a": {"url": "http://a", "protocol": "ollama"}}
    for wrong in (
        {"app_protocol": "gemini", "app_forcing": "grammar"},
        {"upstreams": {"a": {**upstream["a"], "forcing": "guided"}}},
        {"upstreams": upstream, "models": [{"match": "*", "forcing": "structural_tag"}]},
        {"app_forcing": "odd"},
    ):
        with pytest.raises(SettingsError, match="forcing"):
            Settings(**wrong)  # type: ignore[arg-type]
    settings = Settings(upstreams=upstream, models=[{"match": "m", "forcing": "prefill"}])  # type: ignore[arg-type]
    assert [settings.for_model(name).forcing for name in ("m", "other")] == ["prefill", "auto"]


@both
async def test_a_method_that_the_clients_protocol_lacks_is_recorded_as_dropped():
    upstream = ScriptedUpstream(said("messages", CALL))
    records: list[Record] = []
    app = ToolMiddleware(upstream, settings=Settings(app_forcing="grammar"), on_exchange=records.append)
    async with stream_asgi(app, PATHS["messages"], body=json.dumps(write("messages", NAMED)).encode()) as reply:
        await reply.body()
    assert (records[0].forced, records[0].dropped) == ("prompt", ("forcing by grammar",))


def test_a_prefill_is_buffered_no_longer_than_its_marker():
    beginning = Forcing("prefill", BEGIN, ("<tool_call>",), "{")
    made: list[str] = []

    class Seen:
        def feed(self, text: str) -> list[Any]:
            return [text]

        def close(self, reason: str | None = None) -> list[Any]:
            return ["end"]

    def new(prefix: str) -> Any:
        made.append(prefix)
        return Seen()

    parser = Prefilled(beginning, new)
    assert [parser.feed(piece) for piece in (" ", "<tool", "_call", "> {", "}")] == [
        [],
        [],
        [],
        [" <tool_call> {"],
        ["}"],
    ]
    assert made == [""]
    parser = Prefilled(beginning, new)
    assert [parser.feed(" "), parser.feed("{"), parser.close()] == [[], [" {"], ["end"]]
    assert made == ["", BEGIN]
    assert Prefilled(beginning, new).close() == []


@both
async def test_a_retry_without_a_method_counts_as_an_attempt():
    for message in (METHODS["schema"], CONSTRAINTS["schema"], "odd"):
        talk = ModelClient("chat", "schema", refused(message), CALL, limits=LimitSettings(attempts=1))
        assert (await status_of(talk, NAMED))[0] == 400
        assert len(talk.upstream.requests) == 1
