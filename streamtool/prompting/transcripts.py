"""Verbatim history: the prompt contains past calls exactly as the model wrote them.

A client sends back its interpretation of a reply: text, and calls as data. If these are turned into text again, the
result rarely equals the original, so an upstream that has the reply in its prefix cache would have to process it again.
The transcript of each reply with calls is therefore stored under the id of its first call, with a digest of its
meaning. The transcript is used only if the message that the client returns still has the same meaning; edited calls are
written as new text. Searches for tools (`selection`) are part of the transcript, since the client does not know them. A
reply without calls has a transcript only if it follows a search.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from attrs import frozen

import statemachine
from statemachine.formats import is_format
from streamtool.core.conversation import Message
from streamtool.prompting.history import arguments_text
from streamtool.prompting.selection import ToolSearch
from streamtool.protocols.interfaces import Recall


@frozen
class Transcript:
    """A reply as the model wrote it."""

    format: str
    """The format that was taught."""
    meaning: str
    """A digest of the text and the calls."""
    text: str
    tools: str
    """The key of the tools that the model had (`exchange/tool_sets.py`)."""
    tail: str = ""
    """The turn instructions for this reply."""
    searches: tuple[ToolSearch, ...] = ()
    """The searches for tools that precede this reply."""


def transcript_key(call_id: str) -> str:
    """Return the store's key for the transcript of a reply whose first call has this id."""
    return f"words {call_id}"


def answer_id(opening: str, text: str) -> str:
    """Return the id of a reply without calls, for `transcript_key`. `opening` is the text of the first user messages,
    and `text` that of the reply.
    """
    digest = hashlib.sha256("".join(opening.split()).encode("utf-8", "replace") + b"\0")
    digest.update("".join(text.split()).encode("utf-8", "replace"))
    return f"answer {digest.hexdigest()}"


def shown_text(events: Iterable[statemachine.Event], searches: Iterable[ToolSearch]) -> str:
    """Return the text that the client has received: before each search, and in the parser's `events`."""
    texts = [event.text for event in events if isinstance(event, statemachine.TextDelta)]
    return "".join([*(search.shown for search in searches), *texts])


def encode_transcript(
    text: str,
    events: Iterable[statemachine.Event],
    ids: Sequence[str],
    *,
    format: str,
    tools: str,
    turn_instructions: str = "",
    searches: tuple[ToolSearch, ...] = (),
) -> bytes | None:
    """Encode the transcript of a reply that the model wrote as `text` and that the parser turned into `events`.

    `ids` are the ids of the calls that the client received, `format` is the taught format, `tools` is the key of the
    tools, and `turn_instructions` are the turn instructions for this reply. `searches` precede the reply. Return None
    if the text does not contain exactly these calls, or if there are neither calls nor searches.
    """
    said: list[str] = [search.shown for search in searches]
    calls: list[list[str]] = []
    for event in events:
        match event:
            case statemachine.TextDelta(text=piece):
                said.append(piece)
            case statemachine.CallStart(name=name):
                calls.append([name])
            case statemachine.ArgumentsDelta(text=piece):
                calls[-1].append(piece)
    if not (ids or searches) or len(calls) != len(ids):
        return None
    meaning = _meaning("".join(said), [(call[0], "".join(call[1:])) for call in calls])
    return msgspec.json.encode(
        Transcript(format, meaning, _without_surrogates(text), tools, _without_surrogates(turn_instructions), searches)
    )


def find_transcript(message: Message, format: str, recall: Recall, id: str = "") -> Transcript | None:
    """Return the transcript of this message, or None if it is missing or not usable. `id` is the id of a message
    without calls.

    A transcript in another format is not usable, nor is one whose meaning differs from the message.
    """
    known = _load(message, recall, id)
    if known is None:
        return None
    means = _meaning(message.text, [(call.name, arguments_text(call)) for call in message.calls])
    return known if (known.format, known.meaning) == (format, means) else None


def format_of(messages: Iterable[Message], recall: Recall) -> str | None:
    """Return the format that was taught for the earliest reply that has calls and a transcript."""
    for message in messages:
        if message.calls:
            found = _load(message, recall)
            if found is not None and is_format(found.format):
                return found.format
    return None


def toolset_of(message: Message, recall: Recall) -> str | None:
    """Return the key of the tools that the model had when it wrote this message, or None if it is unknown."""
    known = _load(message, recall)
    return None if known is None else known.tools or None


def _load(message: Message, recall: Recall, id: str = "") -> Transcript | None:
    kept = recall(f"words {id or message.calls[0].id}")  # `transcript_key`, inlined to save a call per message
    try:
        return None if kept is None else msgspec.json.decode(kept, type=Transcript)
    except msgspec.DecodeError:  # stored by another version
        return None


def _meaning(text: str, calls: Sequence[tuple[str, str]]) -> str:
    """Return a digest of calls and text that ignores whitespace in the text and the spelling of arguments."""
    digest = hashlib.sha256("".join(text.split()).encode("utf-8", "replace"))
    for name, arguments in calls:
        digest.update(b"\0" + name.encode("utf-8", "replace") + b"\0" + _canonical(arguments))
    return digest.hexdigest()


def _canonical(arguments: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return arguments.encode("utf-8", "replace")


def _without_surrogates(text: str) -> str:
    """Replace unpaired surrogates in the text: no protocol can carry them."""
    return text.encode("utf-8", "replace").decode()
