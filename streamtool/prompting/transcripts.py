"""Verbatim history: past calls stand in the prompt exactly as the model wrote them.

A client sends back what it understood of a reply: text, and calls as data. Written as text again, that is rarely what
the model had written, letter for letter; so an upstream that has the reply in its cache would have to read it anew. So
the words of each reply with calls are kept under the id of its first call, together with a digest of what they mean.
They are used again only if the message that comes back still means the same. Whoever edits a call gets it written anew.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence

import msgspec
from attrs import frozen

import statemachine
from statemachine import FORMATS
from streamtool.conversation import Message
from streamtool.prompting.history import arguments_text

Recall = Callable[[str], bytes | None]


@frozen
class _Words:
    format: str
    """That was taught."""
    meaning: str
    text: str
    tools: str
    """What the tools are found by that the model had (`exchange/toolsets.py`)."""
    tail: str = ""
    """What was said for this reply alone, behind the last message before it."""


def key(call_id: str) -> str:
    """Under which the words of a reply are kept whose first call has this id."""
    return f"words {call_id}"


def words(
    text: str, events: Iterable[statemachine.Event], ids: Sequence[str], *, format: str, tools: str, tail: str = ""
) -> bytes | None:
    """What to keep of a reply that a model wrote as `text`, which reads as `events`.

    `ids` are those of the calls that the client has got; `format` was taught, `tools` is what its tools are found by,
    `tail` what was said for this reply alone.
    None if the text does not mean just these calls.
    """
    said: list[str] = []
    calls: list[list[str]] = []
    for event in events:
        match event:
            case statemachine.TextDelta(text=piece):
                said.append(piece)
            case statemachine.CallStart(name=name):
                calls.append([name])
            case statemachine.ArgumentsDelta(text=piece):
                calls[-1].append(piece)
    if not ids or len(calls) != len(ids):
        return None
    meaning = _meaning("".join(said), [(call[0], "".join(call[1:])) for call in calls])
    return msgspec.json.encode(_Words(format, meaning, _sound(text), tools, _sound(tail)))


def recalled(message: Message, format: str, recall: Recall) -> tuple[str | None, str]:
    """How the model wrote this message, and what was said for it alone; None: it is not known.

    Nor does it count if it was in another format, or does not mean the same as the message.
    """
    known = _known(message, recall)
    if known is None:
        return None, ""
    means = _meaning(message.text, [(call.name, arguments_text(call)) for call in message.calls])
    return (known.text, known.tail) if (known.format, known.meaning) == (format, means) else (None, "")


def format_of(messages: Iterable[Message], recall: Recall) -> str | None:
    """The format that was taught when the first reply with calls was written, of those that are remembered."""
    known = (_known(message, recall) for message in messages if message.calls)
    return next((found.format for found in known if found is not None and found.format in FORMATS), None)


def toolset_of(message: Message, recall: Recall) -> str | None:
    """What the tools are found by that the model had when it wrote this message, if that is known."""
    known = _known(message, recall)
    return None if known is None else known.tools or None


def _known(message: Message, recall: Recall) -> _Words | None:
    kept = recall(key(message.calls[0].id))
    try:
        return None if kept is None else msgspec.json.decode(kept, type=_Words)
    except msgspec.DecodeError:  # another version has kept it
        return None


def _meaning(text: str, calls: Sequence[tuple[str, str]]) -> str:
    """A digest of calls and text; white space in the text and the spelling of the arguments make no difference."""
    digest = hashlib.sha256("".join(text.split()).encode("utf-8", "replace"))
    for name, arguments in calls:
        digest.update(b"\0" + name.encode("utf-8", "replace") + b"\0" + _canonical(arguments))
    return digest.hexdigest()


def _canonical(arguments: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return arguments.encode("utf-8", "replace")


def _sound(text: str) -> str:
    """The text, half characters replaced: no protocol could carry them."""
    return text.encode("utf-8", "replace").decode()
