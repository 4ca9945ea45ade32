"""Verdicts: a finished exchange in one or two sentences, with a next step.

A verdict is a pure function of a record (`verdict`), of an error (`verdict_of_error`), or of text that was parsed
without an exchange (`verdict_of_text`). `ROWS` is the table of verdicts: the first row whose condition holds is the
verdict. The first row of `NOTES` that holds and that the verdict does not already state becomes the second sentence.
Verdicts are computed only where they are shown, after the exchange. The model's own words appear in them only if
contents are allowed; names and words from outside are printable and short.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from attrs import frozen

from statemachine import CallEnd, CallStart, Discarded, Event
from streamtool.core import errors
from streamtool.core.errors import CONTEXT_EXCEEDED, StreamtoolError, UpstreamError
from streamtool.core.json_value import Json
from streamtool.core.reply import Reason, Usage
from streamtool.exchange.near_calls import find_near_call
from streamtool.exchange.record import ExchangeOutcome, Record
from streamtool.observe.verdict_facts import Facts

_SERVER_FAILED: Final = 500
"""The lowest status of a server that has failed."""
ORDINARY: Final = frozenset(
    ("called", "answered", "answered with results", "answered without tools", "translated", "forwarded")
)
"""Kinds of verdicts on exchanges that went as usual."""


@frozen
class ExchangeVerdict:
    """A verdict: the result of an exchange in words, with a next step."""

    kind: str
    """The kind of the verdict: the name of its row."""
    text: str
    """One or two sentences."""
    step: str
    """The next step, as a sentence. Empty if there is nothing to do."""

    def __str__(self) -> str:
        return f"{self.text} {self.step}".rstrip()

    @property
    def ordinary(self) -> bool:
        """Whether the exchange went as usual, so that the next step is of use only to someone who expected a call."""
        return self.kind in ORDINARY

    def as_json(self) -> dict[str, Json]:
        """Return the verdict as plain values."""
        return {"kind": self.kind, "text": self.text, "step": self.step}


# --- the table -------------------------------------------------------------------------------------------------------


@frozen
class Row:
    """A kind of verdict: its condition, and the templates of its sentence and of the next step."""

    kind: str
    on: Callable[[Facts], object]
    text: str
    step: str = ""
    states: frozenset[str] = frozenset()
    """Kinds of notes that this verdict already states."""


def _is(*kinds: type[StreamtoolError]) -> Callable[[Facts], bool]:
    return lambda facts: isinstance(facts.error, kinds)


def _code(*codes: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.code in codes


def _upstream(*statuses: int) -> Callable[[Facts], bool]:
    return lambda facts: facts.upstream_status in statuses


@frozen
class _Ended:
    """A condition of exchanges with one outcome. The rows for other outcomes are not tried."""

    outcome: ExchangeOutcome
    also: Callable[[Facts], object] = lambda _: True

    def __call__(self, facts: Facts) -> object:
        return facts.outcome == self.outcome and self.also(facts)


def _unmet(*causes: str) -> _Ended:
    return _Ended("unmet", lambda facts: not causes or facts.record.unmet in causes)


_CALLED: Final = "{calls}{how}."
_EVAL: Final = (
    "Teach another format (`serve --format`; `streamtool eval` measures them), or add this one (docs/no-call.md)."
)

ERRORS: Final = (
    Row(
        "prompt cut, rejected",
        _code("prompt_truncated"),
        "The server cut the prompt: {read}. The reply was replaced by an error.",
        "{fix}",
        frozenset(("prompt cut",)),
    ),
    Row(
        "prompt too long",
        _code(CONTEXT_EXCEEDED),
        "The prompt does not fit into the model's window{why}.",
        "Give the server a larger window, or show fewer tools (`select_tools`).",
    ),
    Row(
        "reply ended in a call",
        _code("truncated_call"),
        "The reply ended inside a call, which is reported as an error.",
        "{limit_step}",
    ),
    Row(
        "call unreadable",
        _code("malformed_call"),
        "The model's call cannot be read, and could neither be continued nor delivered as it is.",
        "Set `forcing` for the upstream, or teach another `format`.",
    ),
    Row(
        "arguments invalid",
        _code("invalid_arguments"),
        "The last attempt's arguments do not match the tool's schema{why}.",
        'Set `forcing` for the upstream, or deliver them anyway: `invalid = "deliver"`.',
    ),
    Row(
        "server called unknown tool",
        _code("unknown_tool"),
        "The server itself called a tool that the request does not offer.",
        'Offer the tool, or pass such calls on: `unknown_tools = "deliver"`.',
    ),
    Row(
        "reply too large",
        _code("reply_too_large", "event_too_long"),
        "The reply exceeds a limit{why}.",
        "Raise `limits.reply` if the model may write that much.",
    ),
    Row(
        "server unreadable",
        _code("upstream_unreadable"),
        "The server's reply cannot be read{why}.",
        "Check `protocol` and `url` of the upstream: `streamtool probe URL` tries all protocols.",
    ),
    Row(
        "continuation differs",
        _code("continuation_differs"),
        "The server broke off, and its continuation contradicts the text that the client has.",
        "Send the request again, or turn continuation off: `resume = 0`.",
    ),
    Row(
        "server broke off",
        _code("upstream_closed"),
        "The server closed the connection before the reply was complete.",
        "Read the server's log: it may have crashed or run out of memory.",
    ),
    Row(
        "no file descriptors",
        _code("no_descriptors"),
        "The process has no file descriptors left{why}.",
        "Raise `ulimit -n`, or lower `limits.connections`.",
    ),
    Row(
        "key rejected",
        _upstream(401, 403),
        "The server rejected the key ({status}).",
        "Set the upstream's `key` (--key-env NAME), or let the client send a valid one.",
    ),
    Row(
        "model not found",
        _upstream(404),
        "The server knows neither this model nor this path (404){why}.",
        "Check `--model` and the upstream's `url`.",
    ),
    Row(
        "server busy",
        _upstream(429),
        "The server accepts no further requests at the moment (429).",
        "Wait and retry, or add a server to `fallbacks`.",
    ),
    Row(
        "own upstream",
        _is(errors.LoopError),
        "The upstream's URL leads back to this server.",
        "Set `url` to the model's server.",
    ),
    Row(
        "server silent",
        _is(errors.UpstreamTimeout),
        "The server did not answer in time{why}.",
        "Check whether it is loading the model, or raise the upstream's `timeout`.",
    ),
    Row(
        "server rejected request",
        lambda facts: 0 < facts.upstream_status < _SERVER_FAILED,
        "The server rejected the request with {status}{why}.",
        "Compare the request in the inspector with the server's log; `streamtool probe` shows what it supports.",
    ),
    Row(
        "process died",
        _code("server_stopped"),
        "The process that created this response has died.",
        "Send the request again.",
    ),
    Row(
        "server failed",
        _is(UpstreamError),
        "The server failed ({status}){why}.",
        "Check that it runs at the upstream's `url`, and read its log.",
    ),
    Row("stopping", _code("shutting_down"), "This server is stopping (503).", "Send the request again."),
    Row(
        "overloaded",
        _is(errors.UnavailableError),
        "This server has too many open requests (503).",
        "Send the request again later, or raise `limits`.",
    ),
    Row(
        "store failed",
        _is(errors.StoreError),
        "The store of earlier replies cannot be read (503).",
        "Check the file or the Redis server that `store` names.",
    ),
    Row("cancelled", _is(errors.ReplyCancelled), "The client cancelled the reply that was made in the background."),
    Row(
        "client key missing",
        _is(errors.AuthenticationError),
        "The client's key is missing or wrong (401).",
        "Send one of `client_keys` as `authorization: Bearer KEY`.",
    ),
    Row(
        "origin forbidden",
        _is(errors.ForbiddenError),
        "The request is forbidden (403){why}.",
        "Add the page's origin to `cors_origins` if you trust it.",
    ),
    Row(
        "path not found",
        _is(errors.NotFoundError),
        "The path or the object in it does not exist (404){why}.",
        "Compare the client's base URL with the one that `streamtool serve` prints, or add the path to `paths`.",
    ),
    Row(
        "method unsupported",
        _is(errors.MethodError),
        "The path does not support this method (405){why}.",
        "Clients send replies with POST: check the client's base URL.",
    ),
    Row(
        "request slow",
        _is(errors.RequestTimeout),
        "The request did not arrive in time (408).",
        "Check the connection, or raise `limits.body_seconds`.",
    ),
    Row(
        "request too large",
        _is(errors.TooLargeError, errors.HeaderTooLargeError),
        "The request exceeds a limit ({status}){why}.",
        "Shorten the conversation, or raise `limits.body`.",
    ),
    Row(
        "media type unsupported",
        _is(errors.MediaTypeError),
        "The body's media type is not supported (415).",
        "Send JSON with `content-type: application/json`.",
    ),
    Row(
        "host unknown",
        _is(errors.MisdirectedError),
        "The request names a host that is not served here (421){why}.",
        "Add the name to `hosts`.",
    ),
    Row(
        "client over limit",
        _is(errors.TooManyError),
        "The client has reached one of its limits (429){why}.",
        "Wait, or raise `limits` for this key.",
    ),
    Row(
        "request invalid",
        _is(errors.RequestError),
        "The request is invalid ({status}){where}{why}; nothing was sent to the model.",
    ),
    Row("settings invalid", _is(errors.SettingsError), "The settings are invalid{why}.", "Correct the setting."),
    Row(
        "agent gave up",
        _is(errors.AgentError),
        "The agent ended without an answer{why}.",
        "Simplify the task, or allow more turns.",
    ),
    Row("failed", lambda facts: facts.error is not None, "The exchange failed ({status}){why}.", "Read the log."),
)
"""Verdicts about errors."""

_ENDS: Final = (
    Row(
        "client left",
        _Ended("left", lambda facts: facts.record.first_byte is not None),
        "The client left in the middle of the reply, after {seconds}.",
        "If a time limit of the client caused this, raise it.",
    ),
    Row(
        "client left early",
        _Ended("left"),
        "The client left before it received anything, after {seconds}.",
        "Raise the client's time limit: a server may read a long prompt for minutes.",
    ),
    Row(
        "forwarded with tools",
        _Ended("passed", lambda facts: facts.record.tools),
        "Forwarded unchanged, tools included: the server makes the calls itself.",
        'If calls arrive as text, set `mode = "rescue"` or `"emulate"`.',
    ),
    Row("forwarded", _Ended("passed"), "Forwarded unchanged: the request involves no tools."),
    Row(
        "refused to the end",
        _unmet("tools denied", "environment denied", "announced but not called"),
        "{attempts} {unmet}; that reply was delivered.",
        "{unmet_step}",
        frozenset(("retried",)),
    ),
    Row(
        "required call missing",
        _unmet("required call missing", "wrong tool"),
        "No valid call. {attempts} {unmet}.",
        "{unmet_step}",
        frozenset(("retried",)),
    ),
    Row(
        "unknown tool to the end",
        _unmet("unknown tool", "too many searches"),
        "{attempts} {unmet}{called_name}; {outcome_of_call}.",
        "{unmet_step}",
        frozenset(("retried", "discarded")),
    ),
    Row(
        "unreadable to the end",
        _unmet("malformed", "incomplete"),
        "{attempts} {unmet}.",
        "{unmet_step}",
        frozenset(("retried", "discarded")),
    ),
    Row(
        "schema violated to the end",
        _unmet("schema", "arguments"),
        "{attempts} {unmet}; the call was delivered as it is.",
        "{unmet_step}",
        frozenset(("retried",)),
    ),
    Row(
        "no answer to the end",
        _unmet("empty", "only reasoning", "answer", "call forbidden", "protocol"),
        "{attempts} {unmet}.",
        "{unmet_step}",
        frozenset(("retried",)),
    ),
    Row("unmet", _unmet(), "{attempts} {unmet}; the reply was delivered.", "{unmet_step}", frozenset(("retried",))),
    Row(
        "call cut off",
        _Ended("incomplete", lambda facts: facts.record.reason is Reason.LENGTH),
        "Cut by {limit} inside a call, whose arguments are incomplete.",
        "{limit_step}",
    ),
    Row(
        "call filtered",
        _Ended("incomplete", lambda facts: facts.record.reason is Reason.FILTER),
        "The server's content filter ended the reply inside a call.",
        "Change the request, or the server's filter.",
    ),
    Row(
        "call broken",
        _Ended("incomplete"),
        "A call ended before its arguments could be read to their end.",
        'Let the model try again: `arguments = "complete"`.',
    ),
)

_CALLS: Final = (
    Row(
        "resumed and called",
        _Ended("calls", lambda facts: facts.record.resumed),
        "{interruptions}; resumed. {calls}{how}.",
        "{resumed_step}",
        frozenset(("resumed",)),
    ),
    Row(
        "refused, then called",
        _Ended("calls", lambda facts: facts.refusals),
        "Refused {times}, then called. {calls}{how}.",
        "If this repeats, require a call (`tool_choice`), or try another model.",
        frozenset(("retried",)),
    ),
    Row(
        "retried, then called",
        _Ended("calls", lambda facts: facts.rejected),
        "The model {causes}; asked again {times}, it called. {calls}{how}.",
        "Each attempt costs its tokens again: `streamtool eval` measures which settings avoid this.",
        frozenset(("retried",)),
    ),
    Row(
        "called in another format",
        _Ended("calls", lambda facts: facts.differs),
        "{calls}{how}, though {taught} was taught.",
        'If the model keeps to it, teach it: `format = "{format}"`.',
    ),
    Row(
        "called, repaired",
        _Ended("calls", lambda facts: facts.record.repairs),
        "{calls}{how}, repaired: {repairs}.",
    ),
    Row("called", _Ended("calls"), _CALLED),
)

_TEXTS: Final = (
    Row(
        "prompt cut",
        _Ended("text", lambda facts: facts.record.prompt_cut is not None),
        "The server cut the prompt: {read}. No call.",
        "{fix}",
        frozenset(("prompt cut",)),
    ),
    Row(
        "translated",
        lambda facts: facts.record.mode == "translate",
        "Translated {protocols}: the request involves no tools.",
    ),
    Row("answered without tools", lambda facts: not facts.record.tools, "No call: the request offers no tools."),
    Row(
        "filtered",
        lambda facts: facts.record.reason is Reason.FILTER,
        "No call: the server's content filter ended the reply.",
        "Change the request, or the server's filter.",
    ),
    Row(
        "quoted",
        lambda facts: facts.quotes,
        "No call. {quoted} repeated from the conversation became text.",
        'If such calls are meant, deliver them: `quoted = "calls"`.',
        frozenset(("quoted",)),
    ),
    Row(
        "call not allowed",
        lambda facts: facts.record.refused,
        "No call. The model called a tool that this request does not allow.",
        "Offer the tool, or change `tool_choice`.",
        frozenset(("discarded",)),
    ),
    Row(
        "name not offered",
        lambda facts: facts.near_is("name"),
        "No call. {at} is a call in {near_format}, but {name} is not offered{nearest}.",
        "{name_step}",
    ),
    Row(
        "in reasoning",
        lambda facts: facts.near_is("reasoning"),
        "No call. {at} is a call in {near_format}, but inside the model's reasoning.",
        "Set `calls_in_reasoning = true` if the model never closes its reasoning.",
    ),
    Row(
        "in a fence",
        lambda facts: facts.near_is("fence"),
        "No call. {at} is a call in {near_format}, but inside a code fence.",
        'Set `in_fences = "calls"` if the model writes its calls there.',
    ),
    Row(
        "format not read",
        lambda facts: facts.near_is("format"),
        "No call. {at} is a call in {near_format}, which is not read.",
        "Add that format to `formats`, or teach it (`--format`).",
    ),
    Row(
        "text not read",
        lambda facts: facts.near_is("not read"),
        "No call. {at} is a call in {near_format}, but the mode does not read the text.",
        'Set `mode = "rescue"` or `"emulate"`.',
    ),
    Row(
        "unreadable",
        lambda facts: facts.near_is("unreadable"),
        "No call. {at} begins a call in {near_format}, but cannot be read to its end{and_name}.",
        _EVAL,
        frozenset(("discarded",)),
    ),
    Row(
        "no format matches",
        lambda facts: facts.near_is("no format"),
        "No call. {at} looks like one but no format matches (most similar: {near_format}){and_name}.",
        _EVAL,
    ),
    Row(
        "discarded",
        lambda facts: facts.discards,
        "No call. {discards}.",
        'Let the model try again: `unknown_tools = "retry"`, `malformed = "retry"`.',
        frozenset(("discarded",)),
    ),
    Row(
        "text cut off",
        lambda facts: facts.record.reason is Reason.LENGTH,
        "No call. The text was cut by {limit} before one began.",
        "{limit_step}",
    ),
    Row(
        "resumed text",
        lambda facts: facts.record.resumed,
        "No call. {interruptions}; resumed.",
        "{resumed_step}",
        frozenset(("resumed",)),
    ),
    Row(
        "retried, then answered",
        lambda facts: facts.rejected,
        "No call. The model {causes}; asked again {times}, it answered in text.",
        "",
        frozenset(("retried",)),
    ),
    Row("answered with results", lambda facts: facts.record.history, "No call: the model answered from its results."),
    Row(
        "answered",
        lambda _: True,
        "No call: the model answered in text, and nothing in it looks like a call.",
        "If a call was expected, require it (`tool_choice`), or check the prompt: `streamtool prompt`.",
    ),
)

ROWS: Final = (*ERRORS, *_ENDS, *_CALLS, *_TEXTS)
"""The table of verdicts. The first row whose condition holds is the verdict; the last one always holds."""


def _rows_for(outcome: ExchangeOutcome) -> tuple[Row, ...]:
    rows = ROWS if outcome == "error" else ROWS[len(ERRORS) :]
    return tuple(row for row in rows if not isinstance(row.on, _Ended) or row.on.outcome == outcome)


_ROWS_FOR: Final[Mapping[ExchangeOutcome, tuple[Row, ...]]] = {
    outcome: _rows_for(outcome) for outcome in get_args(ExchangeOutcome)
}
"""The rows that may hold for an outcome, in the order of the table."""

NOTES: Final = (
    Row("prompt cut", lambda facts: facts.record.prompt_cut is not None, "The server cut the prompt: {read}."),
    Row("resumed", lambda facts: facts.record.resumed, "{interruptions}; resumed."),
    Row("retried", lambda facts: facts.rejected, "Before that, the model {causes}."),
    Row("declined", lambda facts: facts.declined, "The server declined {declined}, which was then left out."),
    Row("discarded", lambda facts: facts.discards, "{discards}."),
    Row("quoted", lambda facts: facts.quotes, "{quoted} repeated from the conversation became text."),
    Row("left out", lambda facts: facts.record.dropped, "Left out or repaired in the request: {dropped}."),
    Row("many tools", lambda facts: facts.record.warning, "Many tools: {warning}."),
)
"""Further facts. The first one that holds becomes the second sentence, without a next step."""


def verdict(record: Record, *, contents: bool = False) -> ExchangeVerdict:
    """Return the verdict on a finished exchange. If `contents` is true, it may quote the model and error messages."""
    facts = Facts(record, contents=contents)
    row = next(row for row in _ROWS_FOR[facts.outcome] if row.on(facts))
    text = row.text.format_map(facts)
    note = next((one for one in NOTES if one.kind not in row.states and one.on(facts)), None)
    if note is not None and row.kind != note.kind:
        text = f"{text} {note.text.format_map(facts)}"
    return ExchangeVerdict(row.kind, text.replace("?.", "?"), row.step.format_map(facts))


def verdict_of_error(error: StreamtoolError, *, contents: bool = False) -> ExchangeVerdict:
    """Return the verdict on a request that was rejected before it became an exchange."""
    return verdict(_record(error=error), contents=contents)


def verdict_of_text(
    text: str, events: Sequence[Event], tools: Mapping[str, Any] | None, formats: Sequence[str] | None
) -> ExchangeVerdict:
    """Return the verdict on text that was parsed with these tools and formats, given the parser's events."""
    starts = [event for event in events if isinstance(event, CallStart)]
    ends = [event for event in events if isinstance(event, CallEnd)]
    return verdict(
        _record(
            calls=len(starts),
            formats=tuple(dict.fromkeys(start.format for start in starts)),
            repairs=tuple(dict.fromkeys(name for end in ends for name in end.repairs)),
            discarded=tuple((event.reason, len(event.text)) for event in events if isinstance(event, Discarded)),
            incomplete=any(not end.complete for end in ends),
            tools=1 if tools is None else len(tools),
            near=None if starts else find_near_call(text, tools, formats),
        ),
        contents=True,
    )


def _record(**known: Any) -> Record:
    """Return a record that contains only these facts."""
    empty: dict[str, Any] = dict.fromkeys(
        ("request_id", "protocol", "upstream_protocol", "model", "upstream_model", "format", "turn"), ""
    )
    empty |= dict.fromkeys(("attempts", "details", "formats", "repairs", "discarded", "quoted", "dropped"), ())
    empty |= dict.fromkeys(("tools", "calls", "refused", "held", "seconds"), 0)
    empty |= dict.fromkeys(("stream", "incomplete", "tool_prompt", "history"), False)
    empty |= dict.fromkeys(("unmet", "reason", "first_byte", "first_call", "error"))
    return Record(**{**empty, "mode": "emulate", "usage": Usage(), "done": True, **known})
