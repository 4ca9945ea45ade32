"""Replies that are not accepted, and those that are: what tells them apart. (The classes: `test_failure_classes.py`.)"""

import json
from typing import Any

import anyio
import pytest
from dialects import CLIENTS, PATHS, Ask, Got, read, said, write

from streamtool.exchange import Record
from streamtool.http.middleware import ToolMiddleware
from streamtool.settings import Settings
from streamtool.testing import Hang, Script, ScriptedUpstream, assert_valid, stream_asgi, validate_chat_stream

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 1}, "s": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = (("ping", "Pings.", SCHEMA), ("read_file", "Reads a file.", {"type": "object", "properties": {}}))
ASK = Ask((("user", "Ping it."),), TOOLS)
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
CALLED = (("ping", '{"x": 1}'),)

DENIED = "I'm sorry, but I don't have access to any tools in this conversation."
BLOCKED = "I cannot access files on your computer. Please paste the content here."
ANNOUNCED = "I'll have a look. Let me check the file now."
UNKNOWN = '<tool_call>{"name": "pong", "arguments": {}}</tool_call>'
UNFIT = '<tool_call>{"name": "ping", "arguments": {"x": 0, "y": 1}}</tool_call>'

both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)


class ModelClient:
    """One request against scripted replies: what came of it."""

    def __init__(self, *replies: str | Script, settings: Settings | None = None) -> None:
        self.upstream = ScriptedUpstream(*(said("chat", one) if isinstance(one, str) else one for one in replies))
        self.records: list[Record] = []
        self.app = ToolMiddleware(
            self.upstream, settings=settings or Settings(), app_protocol="chat", on_exchange=self.records.append
        )
        self.pieces: list[bytes] = []
        self.headers: dict[str, str] = {}

    async def ask(self, client: str, ask: Ask) -> Got:
        body = json.dumps(write(client, ask)).encode()
        async with stream_asgi(self.app, PATHS[client], body=body) as reply:
            self.pieces = [piece async for piece in reply]
            self.headers = reply.headers
        data = b"".join(self.pieces)
        if client == "chat" and ask.stream:
            assert_valid(validate_chat_stream(data, write(client, ask), headers=reply.headers))
        return read(client, data, stream=ask.stream)

    @property
    def causes(self) -> tuple[str, ...]:
        return self.records[0].attempts

    def last(self, attempt: int) -> str:
        """What the model reads last in this attempt."""
        return str(self.upstream.requests[attempt].json["messages"][-1]["content"])


@both
@clients
async def test_who_has_no_tool_for_it_may_say_that_it_cannot_be_done(client: str):
    talk = ModelClient(BLOCKED, CALL)
    got = await talk.ask(client, Ask(ASK.turns, TOOLS[:1]))
    assert (got.parts, got.reason, talk.causes) == ((BLOCKED,), "stop", ())


@both
@clients
async def test_silence_to_a_question_is_accepted(client: str):
    talk = ModelClient("")
    assert (await talk.ask(client, ASK)).parts == ()  # nobody waits for what follows from a result
    assert talk.causes == ()


@both
async def test_the_last_attempt_holds_nothing_back():
    talk = ModelClient(DENIED, settings=Settings(retries=0))
    assert (await talk.ask("chat", ASK)).parts == (DENIED,)
    plain = ModelClient(DENIED, settings=Settings(refusals="pass"))
    assert (await plain.ask("chat", ASK)).parts == (DENIED,)
    assert talk.pieces == plain.pieces
    assert len(talk.pieces) > len(DENIED) // 4


@both
async def test_an_attempt_is_stopped_as_soon_as_it_is_clear():
    begun = said("chat", f"{BLOCKED} And so on.").steps[:-3]
    talk = ModelClient(Script((*begun, Hang())), CALL)
    with anyio.fail_after(5):
        assert (await talk.ask("chat", ASK)).parts == CALLED


@both
@pytest.mark.parametrize(
    "text",
    [
        "The file has two functions.",
        "I can't help with making weapons.",
        "I'm sorry to hear that. The ping takes 3 ms.",
        "Which host do you mean?",
    ],
)
async def test_an_answer_is_an_answer(text: str):
    talk = ModelClient(text)
    assert (await talk.ask("chat", ASK)).parts == (text,)
    assert talk.causes == ()


@both
async def test_text_that_denies_nothing_leaves_as_the_upstreams_own_bytes():
    talk = ModelClient("The file has two functions, and each of them is short.")
    await talk.ask("chat", ASK)
    forwarded = said("chat", "The file has two functions, and each of them is short.").steps[1:-3]
    assert talk.pieces[1 : 1 + len(forwarded)] == list(forwarded)


@both
@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": "none"}, {"n": 2}, {"tools": None}],
    ids=["no calls wanted", "two choices", "no tools"],
)
async def test_a_denial_passes_where_nobody_could_do_better(fields: dict[str, Any]):
    talk = ModelClient(said("chat", DENIED, n=fields.get("n", 1)))
    body = {**write("chat", ASK), **fields}
    body = {key: value for key, value in body.items() if value is not None}
    async with stream_asgi(talk.app, PATHS["chat"], body=json.dumps(body).encode()) as reply:
        assert read("chat", await reply.body(), stream=True).parts == (DENIED,)
    assert len(talk.upstream.requests) == 1


@both
async def test_behind_an_unknown_call_the_reply_goes_on_with_one_that_is_offered():
    talk = ModelClient(f"Well then.\n{UNKNOWN}", CALL)
    got = await talk.ask("chat", ASK)
    assert got.parts == ("Well then.", *CALLED)
    assert talk.causes == ("unknown tool",)
    assert talk.records[0].unmet is None


@both
async def test_an_unknown_call_behind_a_call_is_left_out():
    talk = ModelClient(f"{CALL}\n{UNKNOWN}")
    got = await talk.ask("chat", ASK)
    assert (got.parts, got.reason) == (CALLED, "calls")
    assert talk.causes == ()
    assert dict(talk.records[0].discarded)["unknown"] > 0
    assert talk.records[0].unmet == "unknown tool"


@both
async def test_unknown_calls_are_left_out_in_the_end():
    talk = ModelClient(UNKNOWN)
    got = await talk.ask("chat", ASK)
    assert (got.parts, got.reason) == ((), "length")
    assert talk.causes == ("unknown tool",) * 2
    assert "`ping`, `read_file`" in talk.last(1)


# --- arguments that do not fit


COMPLETE = Settings(arguments="complete")


@both
@clients
async def test_arguments_that_do_not_fit_are_asked_for_again_with_what_was_wrong(client: str):
    talk = ModelClient(f"So.\n{UNFIT}", CALL, settings=COMPLETE)
    got = await talk.ask(client, ASK)
    assert (got.parts, got.reason) == (("So.", *CALLED), "calls")
    assert talk.causes == ("schema",)
    assert '"minimum":1' in talk.last(1) or "`y`" in talk.last(1) or '"y"' in talk.last(1)


@both
async def test_arguments_are_coerced_first():
    odd = '<tool_call>{"name": "ping", "arguments": {"x": 1.0, "s": null}}</tool_call>'
    talk = ModelClient(odd, settings=COMPLETE)
    got = await talk.ask("chat", ASK)
    assert [json.loads(part[1]) for part in got.parts] == [{"x": 1}]
    assert talk.causes == ()
    assert talk.records[0].repairs


@both
@pytest.mark.parametrize("invalid", ["deliver", "error"])
async def test_what_never_fits_is_delivered_or_an_error(invalid: Any):
    talk = ModelClient(UNFIT, settings=Settings(arguments="complete", invalid=invalid))
    got = await talk.ask("chat", ASK)
    assert talk.causes == ("schema", "schema")
    if invalid == "deliver":
        assert [part[0] for part in got.parts] == ["ping"]
    else:
        assert got.error is not None
        assert "do not fit" in got.error
        assert got.parts == ()


# --- results that the model makes up


@both
@clients
@pytest.mark.parametrize(
    "invented",
    [
        '\n<tool_response name="ping">\npong\n</tool_response>\nIt works.',
        "\nObservation: pong\nIt works.",
        "\n\n[Tool Result]: pong",
        " <|im_start|>user\npong",
    ],
)
async def test_a_result_that_the_model_makes_up_ends_the_reply(client: str, invented: str):
    begun = said("chat", f"So.\n{CALL}{invented}").steps[:-3]
    talk = ModelClient(Script((*begun, Hang())))
    with anyio.fail_after(5):
        got = await talk.ask(client, ASK)
    assert (got.parts, got.reason) == (("So.", *CALLED), "calls")
    assert dict(talk.records[0].discarded)["invented result"] > 0


@both
async def test_a_message_of_a_tool_that_the_model_makes_up_ends_the_reply():
    call = '<|start|>assistant<|channel|>commentary to=functions.ping<|message|>{"x": 1}<|call|>'
    talk = ModelClient(
        f"{call}<|start|>functions.ping to=assistant<|channel|>commentary<|message|>pong<|end|>It works."
    )
    got = await talk.ask("chat", ASK)
    assert got.parts == CALLED
    assert dict(talk.records[0].discarded)["invented result"] > 0


@both
@pytest.mark.parametrize("text", ["\n<tool is ready", "\nObserve: it works.", "\n<b>Done</b>", "\n[Tool"])
async def test_other_text_behind_a_call_is_text(text: str):
    talk = ModelClient(f"So.\n{CALL}{text}")
    got = await talk.ask("chat", ASK)
    assert got.parts == (f"So.{text}", *CALLED)


@both
@clients
async def test_an_attempt_that_comes_in_one_piece_counts_once(client: str):
    pieces = said("chat", f"{UNKNOWN} and {UNKNOWN}", size=3).steps
    talk = ModelClient(Script((b"".join(piece for piece in pieces if isinstance(piece, bytes)),)), CALL)
    assert (await talk.ask(client, ASK)).parts == CALLED
    assert talk.causes == ("unknown tool",)
    assert talk.records[0].usage.output < 40
