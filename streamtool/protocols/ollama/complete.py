"""Writer for complete replies and errors, with helpers shared by complete and streamed replies."""

from typing import Final

import msgspec

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.core.reply import Choice, Reason, Reply, ReplyText, Usage
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import drop_blank_text

_DAY: Final = 86400
_ERA: Final = 146097
"""Number of days in 400 years."""


def write_complete(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:  # noqa: ARG001  replies of this protocol have no id
    """Return the JSON body of a complete reply; the reply's own time and model override the arguments.

    Raises the same errors as `Reply.whole`, because an incomplete reply cannot be written as a complete one.
    """
    choice = reply.whole()[0]
    text, thinking = _text_and_reasoning(choice)
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
    """Return the JSON body of a complete reply to `/api/generate`; see `write_complete`."""
    choice = reply.whole()[0]
    text, thinking = _text_and_reasoning(choice)
    said = {"response": text, "thinking": thinking} if thinking else {"response": text}
    return wire.encode({**_head(reply, created, model), **said, **_ending(reply, choice)})


def _text_and_reasoning(choice: Choice) -> tuple[str, str]:
    """Return the text and the reasoning of a choice."""
    return "".join(part.text for part in drop_blank_text(choice.parts) if isinstance(part, ReplyText)), choice.reasoning


def _head(reply: Reply, created: int, model: str) -> dict[str, Json]:
    return head_fields(reply.model or model, created if reply.created is None else reply.created)


def _ending(reply: Reply, choice: Choice) -> dict[str, Json]:
    cut = any(not call.complete for call in choice.calls)
    return end_fields(choice.reason or Reason.STOP, reply.usage or Usage(), cut=cut)


def head_fields(model: str, created: int) -> dict[str, Json]:
    """Return the fields that start every object; `created` is a Unix timestamp in seconds."""
    return {"model": model, "created_at": _time(created)}


def _time(seconds: int) -> str:
    """Format a time in UTC according to RFC 3339, using Howard Hinnant's `civil_from_days` algorithm, in which years
    start in March.
    """
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
    """Return the entry for a complete call."""
    function = {"index": number, "name": name, "arguments": msgspec.Raw(wire.object_of(arguments))}
    return {"id": id, "function": function}


def end_fields(reason: Reason, usage: Usage, *, cut: bool) -> dict[str, Json]:
    """Return the fields at the end of a reply. The protocol has no separate finish reasons for content filters and
    calls.

    `cut` means that an incomplete call was dropped. Durations are omitted because they are not measured here; Ollama
    itself omits durations of zero.
    """
    return {
        "done": True,
        "done_reason": "length" if cut or reason is Reason.LENGTH else "stop",
        "prompt_eval_count": usage.input,
        "eval_count": usage.output,
        **wire.own_counts(usage),
    }


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:  # noqa: ARG001  sent in a header
    """Return the JSON body of an error; its HTTP status is `error.status`. The message includes `error.param`."""
    named = error.param and error.status < 500 and error.param not in error.message
    return wire.encode({"error": f"{error.param}: {error.message}" if named else error.message})
