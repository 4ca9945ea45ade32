"""The table of verdicts: each kind with an example, and a verdict for everything that a record may contain."""

import ast
import json
import logging
import threading
from typing import Any, get_args

import pytest
from attrs import evolve
from support.inspected import CALL, ask, inspected, model, request
from support.servers import ROOT

from statemachine import FORMATS, Parser
from streamtool.core import errors
from streamtool.core.errors import StreamtoolError, UpstreamError, UpstreamRefused
from streamtool.core.reply import Reason, Usage
from streamtool.exchange.near_calls import find_near_call
from streamtool.exchange.record import ExchangeOutcome, Interruption, NearCall, NearCallCause, PromptCut
from streamtool.observe import verdicts
from streamtool.observe.verdict_facts import CAUSES, DECLINED, DISCARDS, SEARCH
from streamtool.observe.verdicts import NOTES, ROWS, verdict, verdict_of_error, verdict_of_text
from streamtool.policy import FAILURES as TABLE
from streamtool.policy import TOOL_SEARCH
from streamtool.testing import ScriptedUpstream, stream_asgi, text

both = pytest.mark.anyio

BASE = verdicts._record(
    model="m", format="tool_call", tool_prompt=True, tools=2, turn="first decision", first_byte=0.5, seconds=2.0
)
CALLED = evolve(BASE, calls=1, formats=("tool_call",))
NEAR = NearCall("name", 40, '<tool_call>{"name": "get_wether"}', "tool_call", "get_wether", "get_weather")
CUT = Interruption("upstream's own limit", 300, "write_file", 1.0, 512)


def near(cause: NearCallCause, **changes: Any) -> Any:
    return evolve(BASE, near=evolve(NEAR, cause=cause, **changes))


def failed(error: StreamtoolError) -> Any:
    return evolve(BASE, error=error)


def upstream(code: str | None = None, status: int = 502) -> Any:
    error = UpstreamRefused("no", status=status, code=code) if status != 502 else UpstreamError("no", code=code)
    return failed(error)


CASES = {
    "prompt cut, rejected": (evolve(upstream("prompt_truncated"), prompt_cut=PromptCut(2048, 9310, "set num_ctx")), "The server cut the prompt: 2,048 of at least 9,310 tokens were read. The reply was replaced by an error. Set num_ctx."),
    "prompt too long": (upstream("context_length_exceeded", 400), "The prompt does not fit into the model's window"),
    "reply ended in a call": (upstream("truncated_call"), "which is reported as an error"),
    "call unreadable": (upstream("malformed_call"), "The model's call cannot be read"),
    "arguments invalid": (upstream("invalid_arguments"), "arguments do not match the tool's schema"),
    "server called unknown tool": (upstream("unknown_tool"), "The server itself called a tool"),
    "reply too large": (upstream("reply_too_large"), "Raise `limits.reply`"),
    "server unreadable": (upstream("upstream_unreadable"), "cannot be read: no."),
    "continuation differs": (upstream("continuation_differs"), "contradicts the text"),
    "server broke off": (upstream("upstream_closed"), "closed the connection before the reply was complete"),
    "no file descriptors": (upstream("no_descriptors"), "ulimit -n"),
    "key rejected": (upstream(status=401), "The server rejected the key (401)."),
    "model not found": (upstream(status=404), "neither this model nor this path (404)"),
    "server busy": (upstream(status=429), "no further requests at the moment (429)"),
    "own upstream": (failed(errors.LoopError("x")), "leads back to this server"),
    "server silent": (failed(errors.UpstreamTimeout("the upstream sent nothing for 5 seconds")), "did not answer in time: the upstream sent nothing for 5 seconds."),
    "server rejected request": (upstream(status=422), "rejected the request with 422"),
    "process died": (upstream("server_stopped"), "has died"),
    "server failed": (upstream(), "The server failed (502): no."),
    "stopping": (failed(errors.UnavailableError("x", code="shutting_down")), "This server is stopping"),
    "overloaded": (failed(errors.UnavailableError("x", code="overloaded")), "too many open requests"),
    "store failed": (failed(errors.StoreError("x")), "The store of earlier replies cannot be read"),
    "cancelled": (failed(errors.ReplyCancelled("x")), "The client cancelled the reply"),
    "client key missing": (failed(errors.AuthenticationError("x")), "(401). Send one of `client_keys`"),
    "origin forbidden": (failed(errors.ForbiddenError("x")), "forbidden (403)"),
    "path not found": (failed(errors.NotFoundError("x")), "(404)"),
    "method unsupported": (failed(errors.MethodError("x")), "(405)"),
    "request slow": (failed(errors.RequestTimeout("x")), "(408)"),
    "request too large": (failed(errors.TooLargeError("x")), "(413)"),
    "media type unsupported": (failed(errors.MediaTypeError("x")), "(415)"),
    "host unknown": (failed(errors.MisdirectedError("x")), "(421): x. Add the name to `hosts`."),
    "client over limit": (failed(errors.TooManyError("x")), "(429)"),
    "request invalid": (failed(errors.RequestError("x", param="messages[0].role")), "The request is invalid (400) at messages[0].role: x; nothing was sent to the model."),
    "settings invalid": (failed(errors.SettingsError("x")), "The settings are invalid"),
    "agent gave up": (failed(errors.AgentError("x")), "The agent ended without an answer"),
    "failed": (failed(StreamtoolError("x")), "The exchange failed (500): x."),
    "client left": (evolve(BASE, done=False), "The client left in the middle of the reply, after 2.0 s."),
    "client left early": (evolve(BASE, done=False, first_byte=None), "before it received anything"),
    "forwarded with tools": (evolve(BASE, passed=True), "tools included: the server makes the calls itself"),
    "forwarded": (evolve(BASE, passed=True, tools=0), "Forwarded unchanged: the request involves no tools."),
    "refused to the end": (evolve(BASE, unmet="tools denied", attempts=("tools denied", "tools denied")), "Even in attempt 3, the model denied having tools; that reply was delivered."),
    "required call missing": (evolve(BASE, unmet="required call missing"), "No valid call. The model left out the required call. Force the call"),
    "unknown tool to the end": (evolve(BASE, unmet="unknown tool"), "called a tool that is not offered; the client received it as text"),
    "unreadable to the end": (evolve(BASE, unmet="malformed"), "wrote a call that cannot be read"),
    "schema violated to the end": (evolve(CALLED, unmet="schema"), "the call was delivered as it is"),
    "no answer to the end": (evolve(BASE, unmet="empty"), "wrote nothing"),
    "unmet": (evolve(BASE, unmet="open code block"), "The model failed (open code block); the reply was delivered."),
    "call cut off": (evolve(BASE, calls=1, incomplete=True, reason=Reason.LENGTH, usage=Usage(9, 512)), "Cut by the server's limit of 512 tokens inside a call"),
    "call filtered": (evolve(BASE, calls=1, incomplete=True, reason=Reason.FILTER), "content filter ended the reply inside a call"),
    "call broken": (evolve(BASE, calls=1, incomplete=True, reason=Reason.STOP), "A call ended before its arguments"),
    "resumed and called": (evolve(CALLED, resumed=(CUT,)), "Cut by the server's limit of 512 tokens inside `write_file` at character 300; resumed. One call in `tool_call`."),
    "refused, then called": (evolve(CALLED, attempts=("tools denied", "environment denied")), "Refused twice, then called. One call in `tool_call`."),
    "retried, then called": (evolve(CALLED, attempts=("schema",)), "The model wrote arguments that do not match the tool's schema; asked again once, it called."),
    "called in another format": (evolve(CALLED, formats=("invoke",)), 'One call in `invoke`, though `tool_call` was taught. If the model keeps to it, teach it: `format = "invoke"`.'),
    "called, repaired": (evolve(CALLED, repairs=("trailing_comma",)), "One call in `tool_call`, repaired: trailing comma."),
    "called": (evolve(CALLED, calls=2), "2 calls in `tool_call`."),
    "prompt cut": (evolve(BASE, prompt_cut=PromptCut(2048, 9310, "set num_ctx")), "The server cut the prompt: 2,048 of at least 9,310 tokens were read. No call. Set num_ctx."),
    "translated": (evolve(BASE, mode="translate", tools=0, protocol="messages", upstream_protocol="chat"), "Translated from messages to chat"),
    "answered without tools": (evolve(BASE, tools=0), "No call: the request offers no tools."),
    "filtered": (evolve(BASE, reason=Reason.FILTER), "No call: the server's content filter"),
    "quoted": (evolve(BASE, quoted=(("behind text", 1),)), "No call. One call repeated from the conversation became text."),
    "call not allowed": (evolve(BASE, refused=1, discarded=(("forbidden", 9),)), "a tool that this request does not allow"),
    "name not offered": (near("name"), 'No call. At character 41, `<tool_call>{"name": "get_wether"}` is a call in `tool_call`, but `get_wether` is not offered (nearest: `get_weather`).'),
    "in reasoning": (near("reasoning"), "but inside the model's reasoning. Set `calls_in_reasoning = true`"),
    "in a fence": (near("fence"), "but inside a code fence"),
    "format not read": (near("format"), "which is not read. Add that format to `formats`"),
    "text not read": (near("not read"), "the mode does not read the text"),
    "unreadable": (near("unreadable"), "begins a call in `tool_call`, but cannot be read to its end, and `get_wether` is not offered (nearest: `get_weather`)."),
    "no format matches": (near("no format", text="<tool>get_wether</tool>"), "No call. At character 41, `<tool>get_wether</tool>` looks like one but no format matches (most similar: `tool_call`), and `get_wether` is not offered (nearest: `get_weather`). Teach another format"),
    "discarded": (evolve(BASE, discarded=(("unknown", 77), ("reasoning", 9))), "No call. 77 characters dropped: unknown tool."),
    "text cut off": (evolve(BASE, reason=Reason.LENGTH, options=(("max_tokens", 64),)), "The text was cut by the request's limit of 64 tokens before one began. Raise `max_tokens`"),
    "resumed text": (evolve(BASE, resumed=(evolve(CUT, cause="upstream died", place="text"),)), "No call. The server broke off inside text at character 300; resumed."),
    "retried, then answered": (evolve(BASE, attempts=("empty",)), "No call. The model wrote nothing; asked again once, it answered in text."),
    "answered with results": (evolve(BASE, history=True), "No call: the model answered from its results."),
    "answered": (BASE, "No call: the model answered in text, and nothing in it looks like a call. If a call was expected"),
}  # fmt: skip
"""Kind → a record, and a part of its verdict."""


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_of_verdict(kind):
    record, words = CASES[kind]
    found = verdict(record, contents=True)
    assert found.kind == kind
    assert words in str(found)
    for text_ in (found.text, found.step):
        assert not text_ or text_[0].isupper() or text_[0] in "`0123456789"
        assert not text_ or text_.endswith((".", "?"))


def test_the_table_lists_each_kind_once_with_an_example():
    assert [row.kind for row in ROWS] == list(CASES)
    assert len(CASES) >= 25


# --- everything that a record may contain


def test_every_outcome_has_a_verdict():
    records = {
        "error": upstream(),
        "passed": CASES["forwarded"][0],
        "left": CASES["client left"][0],
        "unmet": CASES["unmet"][0],
        "incomplete": CASES["call broken"][0],
        "calls": CALLED,
        "text": BASE,
    }
    assert records.keys() == set(get_args(ExchangeOutcome)), "an outcome without an example"
    kinds = {outcome: verdict(record).kind for outcome, record in records.items()}
    assert [record.outcome for record in records.values()] == list(records)
    assert len(set(kinds.values())) == len(kinds), "two outcomes share a verdict"


def subclasses(kind: type[StreamtoolError]) -> list[type[StreamtoolError]]:
    return [
        found for sub in kind.__subclasses__() if sub.__module__ == errors.__name__ for found in (sub, *subclasses(sub))
    ]


def test_every_class_of_errors_has_a_verdict_of_its_own():
    made = {
        kind.__name__: kind("x", status=422) if kind is UpstreamRefused else kind("x")
        for kind in subclasses(StreamtoolError)
    }
    kinds = {name: verdict_of_error(error).kind for name, error in made.items()}
    assert "failed" not in kinds.values()
    assert {"TooLargeError", "HeaderTooLargeError"} == {
        name for name, kind in kinds.items() if list(kinds.values()).count(kind) > 1
    }


UPSTREAM_CODES = {
    "context_length_exceeded", "prompt_truncated", "server_stopped", "truncated_call", "invalid_arguments", "unknown_tool", "reply_too_large",
    "event_too_long", "upstream_unreadable", "continuation_differs", "malformed_call", "upstream_closed", "no_descriptors",
}  # fmt: skip
"""Codes of the upstream's errors that have separate verdicts."""
PLAIN_CODES = {"upstream_authentication", "choices_missing", "no_summary"}
"""Codes that the status or the message explains."""


def test_every_code_of_an_upstream_error_has_a_verdict():
    """An upstream's error in the source with a literal code that is in neither list fails this test."""
    codes = set()
    for path in (ROOT / "streamtool").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith(("Upstream", "Loop")):
                codes |= {
                    key.value.value
                    for key in node.keywords
                    if key.arg == "code" and isinstance(key.value, ast.Constant)
                }
    assert codes - {None} <= UPSTREAM_CODES | PLAIN_CODES
    assert all(verdict(upstream(code)).kind != "server failed" for code in UPSTREAM_CODES)


def test_every_failure_in_the_table_is_told():
    for failure in TABLE:
        assert failure.cause in CAUSES or failure.cause in DECLINED, failure.cause
    for cause in CAUSES:
        assert verdict(evolve(BASE, unmet=cause)).kind != "unmet" or cause in ("tool search", "quoted", "refused")
        assert "failed (" not in str(verdict(evolve(BASE, attempts=(cause,))))
    for cause in DECLINED:
        assert DECLINED[cause] in str(verdict(evolve(CALLED, attempts=(cause,))))


def test_every_reason_for_discarding_text_is_told():
    """The reasons are the literals passed to `discard`, and those of the parser's events."""
    reasons = {"malformed", "rejected", "cut_off", "unknown", "limit", "invented", "invented_turn", "noise"}
    for path in (ROOT / "streamtool" / "filters").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "discard":
                reasons |= {
                    one.value for arg in node.args[1:] for one in ast.walk(arg) if isinstance(one, ast.Constant)
                }
    assert reasons <= DISCARDS.keys()


def test_every_cause_of_a_near_call_and_every_reason_has_a_verdict():
    assert {verdict(near(cause)).kind for cause in get_args(NearCallCause)}.isdisjoint({"answered"})
    for reason in Reason:
        assert verdict(evolve(BASE, reason=reason)).text
        assert verdict(evolve(BASE, calls=1, incomplete=True, reason=reason)).text


def test_a_second_sentence_adds_what_the_verdict_does_not_state():
    dropped = evolve(CALLED, dropped=("web_search", "seed"))
    assert verdict(dropped).text == "One call in `tool_call`. Left out or repaired in the request: web_search, seed."
    cut = evolve(CASES["prompt cut"][0], dropped=("seed",))
    assert "cut the prompt" in verdict(cut).text
    assert verdict(cut).text.count("cut the prompt") == 1
    assert {state for row in ROWS for state in row.states} <= {note.kind for note in NOTES}


def test_without_contents_the_model_is_not_quoted():
    for kind, (record, _) in CASES.items():
        told = str(verdict(record))
        assert "get_wether" not in told, kind
        assert "At character 41, text" in told or record.near is None


def test_control_characters_from_a_model_or_a_client_are_escaped():
    forged = "\n2026 forged\x1b[31m\u202e"
    record = near("no format", text=f"<tool>{forged}", name=forged, tool=forged)
    for changed in (record, evolve(BASE, dropped=(forged,)), evolve(CALLED, resumed=(evolve(CUT, place=forged),))):
        assert str(verdict(changed, contents=True)).isprintable()


# --- text that looks like a call

OFFERED = {"get_weather": {}, "write_file": {}}
ARGUMENTS = '"arguments": {"city": "Paris"}'
NEAR_CALLS = {
    '<tool>get_wether</tool>\n<args>{"city": "Paris"}</args>': ("no format", "tool_call", "get_wether", "get_weather"),
    f'<tool_call>{{"name": "get_wether", {ARGUMENTS}}}</tool_call>': ("name", "tool_call", "get_wether", "get_weather"),
    f'<tool_call>{{"name": "launch", {ARGUMENTS}}}</tool_call>': ("name", "tool_call", "launch", ""),
    f'<think><tool_call>{{"name": "get_weather", {ARGUMENTS}}}</tool_call></think>': ("reasoning", "tool_call", "get_weather", "get_weather"),
    "<tool_call>see get_weather</tool_call>": ("unreadable", "tool_call", "get_weather", "get_weather"),
    'get_weather(city="Paris")': ("format", "bare_call", "get_weather", "get_weather"),
    "<get_weather><city>Paris</city></get_weather>": ("format", "tag", "get_weather", "get_weather"),
    '```python\nget_weather(city="Paris")\n```': ("no format", "pythonic", "get_weather", "get_weather"),
    '<run:write_file path="a"/>': None,
    '<call:write_file path="a"/>': ("no format", "tool_call", "write_file", "write_file"),
    "Action: look outside": None,
    '{"name": "Bob", "age": 3}': None,
    "The weather (today) is fine: x[0] < y.": None,
}  # fmt: skip
"""Text → the cause, the format, the name and the tool of the near call, or None."""


@pytest.mark.parametrize("said_", NEAR_CALLS, ids=lambda text: text[:20])
def test_text_that_looks_like_a_call(said_):
    found = find_near_call(said_, OFFERED, None)
    told = None if found is None else (found.cause, found.format, found.name, found.tool)
    assert told == NEAR_CALLS[said_]
    if found is not None:
        begin = said_.index("<tool_call>") if "<think>" in said_ else said_.index("get_w") if "python" in said_ else 0
        assert found.character == begin
        assert found.format in FORMATS


def test_a_call_in_text_that_is_not_read():
    found = find_near_call(CALL, OFFERED, None, read=False)
    assert found is not None
    assert found.cause == "not read"
    assert find_near_call(CALL, OFFERED, None) is None
    assert find_near_call(CALL, {}, None) is None, "without tools, nothing is a call"


def test_only_the_beginning_of_a_long_reply_is_examined():
    assert find_near_call("word (x) " * 100_000 + "<tool>get_wether</tool>", OFFERED, None) is None


def test_parsed_text_has_a_verdict():
    parser = Parser(OFFERED)
    events = [*parser.feed(CALL), *parser.close()]
    assert str(verdict_of_text(CALL, events, OFFERED, None)) == "One call in `tool_call`."


# --- where verdicts are shown

WRONG = "Sure! I will use the weather tool now.\n\n<tool>get_wether</tool>\n<args>{}</args>"
SHOWN = "At character 41, `<tool>get_wether</tool>` looks like one but no format matches (most similar: `tool_call`)"


@both
@pytest.mark.parametrize("contents", [True, False])
async def test_the_log_and_the_record_contain_the_verdict(contents, caplog):
    caplog.set_level(logging.INFO, logger="streamtool.exchange")
    app = inspected(model(WRONG), contents=contents)
    await ask(app)
    (record,) = (one for one in caplog.records if one.name == "streamtool.exchange")
    known = record.streamtool["verdict"]
    assert known["kind"] == "no format matches"
    assert (SHOWN in known["text"]) == contents
    assert (SHOWN in record.getMessage()) == contents
    assert record.streamtool["near"]["character"] == 40
    assert ("get_wether" in json.dumps(record.streamtool)) == contents
    assert app.observers.ring.summary("1")["verdict"] == known


@both
async def test_real_exchanges_have_the_verdict_of_their_cause(caplog):
    caplog.set_level(logging.INFO, logger="streamtool.exchange")
    denied = "I'm sorry, but I don't have access to any tools in this conversation."
    for replies, kind in (((denied, CALL), "refused, then called"), (("It is sunny.",), "answered")):
        await ask(inspected(model(*replies)))
        assert caplog.records[-1].streamtool["verdict"]["kind"] == kind


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_the_header_is_sent_by_setting_with_replies_that_are_not_streamed(stream):
    for wanted in (True, False):
        app = inspected(model(WRONG + "\nné"), verdict_header=wanted)
        async with stream_asgi(
            app, body=request(stream=stream), headers=[(b"content-type", b"application/json")]
        ) as reply:
            await reply.body()
            await reply.finished.wait()
        shown = reply.headers.get("x-streamtool-verdict")
        assert (shown is not None and SHOWN in shown) == (wanted and not stream)


@both
async def test_nothing_is_examined_if_no_verdict_is_shown(monkeypatch):
    logging.getLogger("streamtool.exchange").setLevel(logging.ERROR)
    monkeypatch.setattr("streamtool.exchange.exchange.find_near_call", lambda *_, **__: pytest.fail("examined"))
    try:
        await ask(inspected(ScriptedUpstream(text(WRONG)), inspect=False))
    finally:
        logging.getLogger("streamtool.exchange").setLevel(logging.NOTSET)


@both
async def test_a_server_examines_a_reply_in_another_thread(monkeypatch):
    threads: list[int] = []

    def examine(*given: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return find_near_call(*given, **options)

    monkeypatch.setattr("streamtool.exchange.exchange.find_near_call", examine)
    await ask(inspected(model("It is sunny.")))
    assert not threads, "nothing in the text looks like a call"
    app = inspected(model(WRONG))
    await ask(app)
    assert SHOWN in str(app.observers.ring.summary("1")["verdict"])
    assert (len(threads), threading.get_ident() in threads) == (1, False)


@both
async def test_a_tool_that_is_not_offered_is_named_with_the_next_step():
    for name, step in (("fetch_data", "let the client handle the name"), ("get_wether", 'tool_names = "edit"')):
        app = inspected(model(CALL.replace("get_weather", name)), unknown_tools="text")
        await ask(app)
        found = app.observers.ring.summary("1")["verdict"]
        assert f"`{name}` is not offered" in found["text"]
        assert step in found["step"]
    app = inspected(model(*[CALL.replace("get_weather", "fetch_data")] * 3))
    await ask(app)
    found = app.observers.ring.summary("1")["verdict"]["text"]
    assert "called a tool that is not offered; the reply was delivered as it is" in found


@both
async def test_a_constraint_that_the_server_ignores_is_named():
    app = inspected(model("No.", "No.", "No."), app_forcing="schema", app_protocol="chat")
    await ask(app, request(tool_choice="required"))
    assert "The server ignored the constraint (`schema`)" in app.observers.ring.summary("1")["verdict"]["step"]


def test_a_search_has_the_cause_that_the_policy_gives_it():
    """The verdict of a text loads no policy, so the word is written twice."""
    assert TOOL_SEARCH.cause == SEARCH
