"""Which replies are rejected and which are accepted. (For the classes see `test_failure_classes.py`.)"""

import json
from typing import Any

import anyio
import pytest
from attrs import evolve
from support.dialects import ALL_CLIENTS, PATHS, Ask, read, said, write
from support.native_replies import native_call
from support.scripted_replies import (
    ASK,
    BLOCKED,
    CALL,
    CALLED,
    COMPLETE,
    DENIED,
    TOOLS,
    UNFIT,
    UNKNOWN,
    ModelClient,
    both,
    clients,
)

from streamtool.settings import Settings
from streamtool.testing import Hang, Script, stream_asgi

all_clients = pytest.mark.parametrize("client", ALL_CLIENTS)


@both
@clients
async def test_a_model_without_a_suitable_tool_may_say_so(client: str):
    talk = ModelClient(BLOCKED, CALL)
    got = await talk.ask(client, Ask(ASK.turns, TOOLS[:1]))
    assert (got.parts, got.reason, talk.causes) == ((BLOCKED,), "stop", ())


@both
@clients
async def test_an_empty_reply_to_a_question_is_accepted(client: str):
    talk = ModelClient("")
    assert (await talk.ask(client, ASK)).parts == ()  # no result is waiting for an answer
    assert talk.causes == ()


@both
async def test_the_last_attempt_buffers_nothing():
    talk = ModelClient(DENIED, settings=Settings(retries=0))
    assert (await talk.ask("chat", ASK)).parts == (DENIED,)
    plain = ModelClient(DENIED, settings=Settings(refusals="pass"))
    assert (await plain.ask("chat", ASK)).parts == (DENIED,)
    assert talk.pieces == plain.pieces
    assert len(talk.pieces) > len(DENIED) // 4


@both
async def test_an_attempt_is_stopped_as_soon_as_it_has_failed():
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
async def test_an_answer_is_accepted(text: str):
    talk = ModelClient(text)
    assert (await talk.ask("chat", ASK)).parts == (text,)
    assert talk.causes == ()


@both
async def test_text_without_a_denial_is_forwarded_as_the_upstreams_bytes():
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
async def test_a_denial_passes_if_a_retry_could_not_help(fields: dict[str, Any]):
    talk = ModelClient(said("chat", DENIED, n=fields.get("n", 1)))
    body = {**write("chat", ASK), **fields}
    body = {key: value for key, value in body.items() if value is not None}
    async with stream_asgi(talk.app, PATHS["chat"], body=json.dumps(body).encode()) as reply:
        assert read("chat", await reply.body(), stream=True).parts == (DENIED,)
    assert len(talk.upstream.requests) == 1


@both
async def test_after_an_unknown_call_the_reply_continues_with_a_known_one():
    talk = ModelClient(f"Well then.\n{UNKNOWN}", CALL)
    got = await talk.ask("chat", ASK)
    assert got.parts == ("Well then.", *CALLED)
    assert talk.causes == ("unknown tool",)
    assert talk.records[0].unmet is None


@both
async def test_an_unknown_call_after_a_call_is_left_out():
    talk = ModelClient(f"{CALL}\n{UNKNOWN}")
    got = await talk.ask("chat", ASK)
    assert (got.parts, got.reason) == (CALLED, "calls")
    assert talk.causes == ()
    assert dict(talk.records[0].discarded)["unknown"] > 0
    assert talk.records[0].unmet == "unknown tool"


@both
@all_clients
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_unknown_call_in_the_last_attempt_is_delivered(client: str, stream: bool):
    text = f"So.\n{UNKNOWN}"
    talk = ModelClient(UNKNOWN, UNKNOWN, text)
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream))
    assert (got.parts, got.reason, got.error) == (("So.", ("pong", "{}")), "calls", None)
    assert talk.causes == ("unknown tool",) * 2
    assert talk.records[0].unmet == "unknown tool"
    assert dict(talk.records[0].discarded) == {}
    assert "`ping`, `read_file`" in talk.last(1)


@both
async def test_an_unknown_call_in_the_last_attempt_streams():
    talk = ModelClient(said("chat", UNKNOWN, size=4), settings=Settings(retries=0))
    assert (await talk.ask("chat", ASK)).parts == (UNKNOWN,)
    assert len(talk.pieces) > len(UNKNOWN) // 8


@both
@all_clients
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_unknown_native_call_in_the_last_attempt_is_delivered(client: str, stream: bool):
    talk = ModelClient(native_call("pong", "{}"))
    got = await talk.ask(client, Ask(ASK.turns, TOOLS, stream))
    assert (got.parts, got.reason, got.error) == ((("pong", "{}"),), "calls", None)
    assert talk.causes == ("unknown tool",) * 2


@both
async def test_an_unknown_native_call_is_an_error_if_the_model_is_not_asked_again():
    talk = ModelClient(native_call("pong", "{}"), settings=Settings(retries=0))
    assert "not offered" in str((await talk.ask("chat", ASK)).error)


# --- invalid arguments


@both
@clients
async def test_invalid_arguments_are_retried_with_the_error(client: str):
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
async def test_persistently_invalid_arguments_are_delivered_or_an_error(invalid: Any):
    talk = ModelClient(UNFIT, settings=Settings(arguments="complete", invalid=invalid))
    got = await talk.ask("chat", ASK)
    assert talk.causes == ("schema", "schema")
    if invalid == "deliver":
        assert [part[0] for part in got.parts] == ["ping"]
    else:
        assert got.error is not None
        assert "do not match" in got.error
        assert got.parts == ()


# --- results made up by the model


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
async def test_a_made_up_result_ends_the_reply(client: str, invented: str):
    begun = said("chat", f"So.\n{CALL}{invented}").steps[:-3]
    talk = ModelClient(Script((*begun, Hang())))
    with anyio.fail_after(5):
        got = await talk.ask(client, ASK)
    assert (got.parts, got.reason) == (("So.", *CALLED), "calls")
    assert dict(talk.records[0].discarded)["invented result"] > 0


@both
async def test_a_made_up_tool_message_ends_the_reply():
    call = '<|start|>assistant<|channel|>commentary to=functions.ping<|message|>{"x": 1}<|call|>'
    talk = ModelClient(
        f"{call}<|start|>functions.ping to=assistant<|channel|>commentary<|message|>pong<|end|>It works."
    )
    got = await talk.ask("chat", ASK)
    assert got.parts == CALLED
    assert dict(talk.records[0].discarded)["invented result"] > 0


# --- turns made up by the model


TURN = f"<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n{CALL}"


@both
@clients
@pytest.mark.parametrize("text", ["So.", f"So.\n{CALL}", CALL])
async def test_a_made_up_turn_ends_the_reply(client: str, text: str):
    begun = said("chat", f"{text}{TURN}").steps[:-3]
    talk = ModelClient(Script((*begun, Hang())))
    with anyio.fail_after(5):
        got = await talk.ask(client, ASK)
    called = CALL in text
    assert got.parts == (*(("So.",) if text.startswith("So.") else ()), *(CALLED if called else ()))
    assert got.reason == ("calls" if called else "stop")
    assert dict(talk.records[0].discarded)["invented turn"] > 0
    assert talk.causes == ()


@both
async def test_a_made_up_turn_ends_a_whole_reply():
    talk = ModelClient(f"So.{TURN}")
    got = await talk.ask("chat", evolve(ASK, stream=False))
    assert (got.parts, got.reason) == (("So.",), "stop")


@both
async def test_a_reply_that_ends_with_a_made_up_turn_is_judged():
    begun = said("chat", f"{BLOCKED}{TURN}").steps[:-3]
    talk = ModelClient(Script((*begun, Hang())), CALL)
    with anyio.fail_after(5):
        assert (await talk.ask("chat", evolve(ASK, choice="required"))).parts == CALLED
    assert talk.causes == ("required call missing",)


@both
@pytest.mark.parametrize("text", ["\n<tool is ready", "\nObserve: it works.", "\n<b>Done</b>", "\n[Tool"])
async def test_other_text_after_a_call_is_text(text: str):
    talk = ModelClient(f"So.\n{CALL}{text}")
    got = await talk.ask("chat", ASK)
    assert got.parts == (f"So.{text}", *CALLED)


@both
@clients
async def test_an_attempt_that_arrives_in_one_piece_counts_once(client: str):
    pieces = said("chat", f"{UNKNOWN} and {UNKNOWN}", size=3).steps
    talk = ModelClient(Script((b"".join(piece for piece in pieces if isinstance(piece, bytes)),)), CALL)
    assert (await talk.ask(client, ASK)).parts == CALLED
    assert talk.causes == ("unknown tool",)
    assert talk.records[0].usage.output < 40
