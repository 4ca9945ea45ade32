"""The session of an exchange: the exchanges of the same conversation, with what the client added between them.

Sessions are inferred from the requests, since no protocol names them: a request continues an earlier one if it repeats
that one's user messages and has more messages, or, if it names a previous reply (`previous_response_id`), if that is
the earlier one's reply or if it answers a call in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, Protocol

from streamtool.core.conversation import Conversation, Message
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.observe.lines import Line
from streamtool.protocols.registry import client_protocol
from streamtool.protocols.shared.wire import encode
from streamtool.settings import LimitSettings

NEAR: Final = 60
"""Maximum number of exchanges before, and after, that are searched for the session's other turns."""
_TRIES: Final = 8
"""Maximum number of attempts if other exchanges are deleted meanwhile."""
LONG: Final = 4_000
"""Maximum number of characters of a text in the session; the other views show the whole text."""


class Exchanges(Protocol):
    """A source of exchanges."""

    def versions(self) -> Mapping[str, int]: ...
    def summary(self, id: str, /) -> Json: ...
    def lines(self, id: str, /) -> Iterator[Line]: ...


def session(kept: Exchanges, id: str) -> list[Json]:
    """Return the turns of the exchange's session, oldest first. Raises KeyError.

    Each turn has the exchange's `summary`, the new `inputs` of its request (the user's texts, and the results of
    calls), the number of `earlier` messages that no turn contains, the seconds that the client `waited` since the turn
    before, and the reply's `text` and `calls`.
    """
    ids = list(kept.versions())
    for _ in range(_TRIES):
        if id not in ids:
            break
        try:
            return _turns(kept, ids, id)
        except KeyError:
            before, ids = ids, list(kept.versions())
            if set(before) <= set(ids):  # nothing has been deleted: a recording is damaged
                raise
    raise KeyError(id)


def _turns(kept: Exchanges, ids: Sequence[str], id: str) -> list[Json]:
    place = ids.index(id)
    turns = [SessionTurn(kept, one) for one in ids[max(place - NEAR, 0) : place + NEAR + 1]]
    chain = _chain(turns, next(turn for turn in turns if turn.id == id))
    return [turn.as_json(before) for before, turn in zip([None, *chain], chain, strict=False)]


def _chain(turns: "Sequence[SessionTurn]", one: "SessionTurn") -> "list[SessionTurn]":
    """Return the turn, preceded by those that it continues and followed by those that continue it."""
    chain = [one]
    while (before := _continued_by(chain[0], turns)) is not None:
        chain.insert(0, before)
    for later in turns[turns.index(one) + 1 :]:
        if _continued_by(later, turns) is chain[-1]:
            chain.append(later)
    return chain


def _continued_by(turn: "SessionTurn", turns: "Sequence[SessionTurn]") -> "SessionTurn | None":
    """Return the turn that this one continues: the one with the most messages and, of several, the latest."""
    earlier = [one for one in turns[: turns.index(turn)] if turn.continues(one)]
    return max(reversed(earlier), key=lambda one: len(one.messages), default=None)


class SessionTurn:
    """One exchange of a session."""

    def __init__(self, kept: Exchanges, id: str) -> None:
        self._kept = kept
        self.id = id

    @cached_property
    def _first(self) -> Line:
        try:
            return next((line for line in self._kept.lines(self.id) if line["type"] == "exchange"), {})
        except KeyError:  # just deleted
            return {}

    @cached_property
    def previous(self) -> Json:
        """The id of the reply that the request names as the previous one, or None."""
        request = self._first.get("request")
        return request.get("previous_response_id") if isinstance(request, Mapping) else None

    @cached_property
    def messages(self) -> Sequence[Message]:
        """The request's messages; () if the request cannot be read."""
        request = self._first.get("request")
        if not isinstance(request, Mapping):
            return ()
        body = {key: value for key, value in request.items() if key not in ("previous_response_id", "conversation")}
        try:
            found: Conversation = client_protocol(self._first["protocol"]).read_request(encode(body), LimitSettings())
        except (StreamtoolError, ValueError, RecursionError):
            return ()
        return found.messages

    @cached_property
    def texts(self) -> list[str]:
        """The user's messages."""
        return [message.text for message in self.messages if message.role == "user" and message.text.strip()]

    @cached_property
    def reply(self) -> "tuple[str | None, str, dict[int, dict[str, Json]]]":
        """The reply's id, and the first choice's text and calls by index."""
        name, text = None, []
        calls: dict[int, dict[str, Json]] = {}
        written: dict[int, list[str]] = {}
        for line in self._kept.lines(self.id):
            for event in line["events"] if line["type"] == "sent" else ():
                if event["type"] == "start":
                    name = event["id"]
                if event.get("choice") != 0:
                    continue
                match event["type"]:
                    case "text_delta":
                        text.append(event["text"])
                    case "call_start":
                        calls[event["index"]] = {"id": event["id"], "name": event["name"]}
                    case "arguments_delta":
                        written.setdefault(event["index"], []).append(event["text"])
                    case _:
                        pass
        for index, call in calls.items():
            call["arguments"] = "".join(written.get(index, ()))
        return name, "".join(text), calls

    def continues(self, other: "SessionTurn") -> bool:
        """Return whether this turn continues the conversation of an earlier one."""
        if self.repeats(other):
            return True
        if self.previous is None:
            return False
        name, _, calls = other.reply
        answered = {result.id for message in self.messages for result in message.results}
        return self.previous == name or any(call["id"] in answered for call in calls.values())

    def repeats(self, other: "SessionTurn") -> bool:
        """Return whether this turn has the other one's user messages, and more messages."""
        return (
            bool(other.texts)
            and len(self.messages) > len(other.messages)
            and self.texts[: len(other.texts)] == other.texts
        )

    def as_json(self, before: "SessionTurn | None") -> Json:
        """Return the turn as plain values. `before` is the turn that it continues, if known."""
        summary = self._kept.summary(self.id)
        _, text, calls = self.reply
        known = len(before.messages) if before is not None and self.repeats(before) else 0
        if before is None:  # show only the last question, since no stored exchange has the messages before it
            asked = [place for place, message in enumerate(self.messages) if message.role == "user"]
            known = asked[-1] if asked else 0
        names = {} if before is None else {call["id"]: call["name"] for call in before.reply[2].values()}
        names |= {call.id: call.name for message in self.messages for call in message.calls}
        return {
            "id": self.id,
            "summary": summary,
            "earlier": sum(message.role != "system" for message in self.messages[:known]) if before is None else 0,
            "waited": None if before is None else _between(self._kept.summary(before.id), summary),
            "inputs": [part for message in self.messages[known:] for part in _inputs(message, names)],
            "text": _short(text),
            "calls": [{**call, "arguments": _short(call["arguments"])} for call in calls.values()],
        }


def _inputs(message: Message, names: Mapping[Json, str]) -> Iterator[Json]:
    """Yield a message's results and, if it is the user's, its text."""
    for result in message.results:
        content = Message("user", result.content).text
        name = result.name or names.get(result.id) or result.id
        yield {"kind": "result", "id": result.id, "name": name, "text": _short(content), "error": result.error}
    if message.role == "user" and message.text.strip():
        yield {"kind": "user", "text": _short(message.text)}


def _between(before: Json, after: Json) -> float | None:
    """Return the seconds from the end of a reply to the next request, or None if a time is unknown."""
    match before, after:
        case {"at": float() as began, "seconds": float() as lasted}, {"at": float() as next_began}:
            return round(max(next_began - began - lasted, 0.0), 6)
    return None


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}… ({len(text):,} characters)"
