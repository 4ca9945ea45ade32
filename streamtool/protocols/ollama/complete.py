"""Writes a whole reply, and errors; and what a whole reply and a streamed one must agree on."""

from typing import Any, Final

import msgspec

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError
from streamtool.protocols import wire
from streamtool.protocols.stream import spoken
from streamtool.reply import Choice, Reason, Reply, ReplyText, Usage

Json = Any  # a JSON value

_DAY: Final = 86400
_ERA: Final = 146097
"""Days of 400 years."""


def write_complete(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:  # noqa: ARG001  replies bear no id here
    """The JSON body of a reply that is not streamed; the reply's own time and model win over those given.

    Raises what `Reply.whole` raises: a reply that is not whole is answered with an error.
    """
    choice = reply.whole()[0]
    text, thinking = _said(choice)
    message: dict[str, Json] = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    calls = [
        call_entry(number, call.id, call.name, call.arguments)
        for number, call in enumerate(call for call in choice.calls if call.complete)
    ]
    if calls:
        message["tool_calls"] = calls
    return wire.encode({**_head(reply, created, model), "message": message, **_ending(reply, choice)})


def write_generated(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:  # noqa: ARG001  as above
    """As `write_complete`, in answer to `/api/generate`."""
    choice = reply.whole()[0]
    text, thinking = _said(choice)
    said = {"response": text, "thinking": thinking} if thinking else {"response": text}
    return wire.encode({**_head(reply, created, model), **said, **_ending(reply, choice)})


def _said(choice: Choice) -> tuple[str, str]:
    """The text and the reasoning."""
    return "".join(part.text for part in spoken(choice.parts) if isinstance(part, ReplyText)), choice.reasoning


def _head(reply: Reply, created: int, model: str) -> dict[str, Json]:
    return head_fields(reply.model or model, created if reply.created is None else reply.created)


def _ending(reply: Reply, choice: Choice) -> dict[str, Json]:
    cut = any(not call.complete for call in choice.calls)
    return end_fields(choice.reason or Reason.STOP, reply.usage or Usage(), cut=cut)


def head_fields(model: str, created: int) -> dict[str, Json]:
    """What every object begins with; `created` in seconds since 1970."""
    return {"model": model, "created_at": _time(created)}


def _time(seconds: int) -> str:
    """RFC 3339, in UTC. The calendar of Howard Hinnant's `civil_from_days`, whose years begin with March."""
    day, second = divmod(seconds, _DAY)
    era, of_era = divmod(day + 719468, _ERA)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    date = of_year - (153 * month + 2) // 5 + 1
    year += era * 400 + (month >= 10)
    month += -9 if month >= 10 else 3
    return f"{year:04}-{month:02}-{date:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


def call_entry(number: int, id: str | None, name: str, arguments: str) -> dict[str, Json]:
    """A whole call."""
    function = {"index": number, "name": name, "arguments": msgspec.Raw(wire.object_of(arguments))}
    return {"id": id, "function": function}


def end_fields(reason: Reason, usage: Usage, *, cut: bool) -> dict[str, Json]:
    """Why the reply ended, and its tokens. There is no word for a filter, nor for a stop with calls.

    `cut`: a call is incomplete; it is not shown. The durations, which are not measured here, are left out, as Ollama
    leaves out those that are zero.
    """
    return {
        "done": True,
        "done_reason": "length" if cut or reason is Reason.LENGTH else "stop",
        "prompt_eval_count": usage.input,
        "eval_count": usage.output,
        **wire.own_counts(usage),
    }


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:  # noqa: ARG001  stands in a header
    """The JSON body of an error; its HTTP status is `error.status`. A place that it names stands in the sentence."""
    named = error.param and error.status < 500 and error.param not in error.message
    return wire.encode({"error": f"{error.param}: {error.message}" if named else error.message})
