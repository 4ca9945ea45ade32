"""Reads an upstream's Chat Completions reply, in whatever shape it really comes, into reply events.

Theory of operation. `ChoicesReader` does what all replies of choices need; here is what makes the common chunk cheap. A
whole reply goes through the same code as a chunk: a `message` is read like a `delta`. A chunk is decoded as a whole,
which takes half a microsecond; the common one, which holds a piece of text and nothing else, is recognised first and
leaves with its own bytes in `TextDelta.raw`. The events of one reply differ in nothing but their text, as a rule: once
one was read and recognised, what stands before and behind its text is remembered, and of an event that begins and ends
so only the text is decoded.

What is worth knowing about upstreams:
- Native calls may come although text was asked for. One call is open at a time: what belongs elsewhere while its
  arguments are no whole object is queued until the end. An upstream that finishes one call before the next, as all
  should, never meets the queue.
- Half a character may stand at the end of a piece (`wire.Joiner`).
Nothing here raises on what an upstream sends.
"""

import re
from typing import ClassVar, Final

import msgspec

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.chat.choice import ChoiceReader
from streamtool.protocols.choices import ChoicesReader
from streamtool.protocols.stream import Events, Fields, Json
from streamtool.reply import Reason, ReplyTextDelta

_new: Final = object.__new__  # `__init__` costs as much as all else of an event, since C calls it
_decode: Final = wire.decode
_string: Final = msgspec.json.Decoder(str).decode
_content: Final = re.compile(rb'"content":[ ]?"').search
_escaped: Final = re.compile(rb'["\\\x00-\x1f]').search
_LOOKS: Final = 4  # how often the shape of an event is remembered; an upstream whose events all differ has none


class ReplyReader(ChoicesReader[ChoiceReader]):
    """Reads one reply with `n` choices."""

    __slots__ = ("_before", "_behind", "_looks", "_named", "_quick", "_speaker")

    REASONS: ClassVar = {
        "length": Reason.LENGTH,
        "max_tokens": Reason.LENGTH,
        "content_filter": Reason.FILTER,
        "safety": Reason.FILTER,
        "stop_sequence": Reason.STOP_SEQUENCE,
    }
    """Everything else (`stop`, `tool_calls`, `function_call`, `eos`, …) is a stop."""

    def __init__(self, *, n: int = 1) -> None:
        super().__init__(n=n)
        self._named = False  # the reply has an id, a time and a model of its own, which a forwarded event repeats
        self._before = self._behind = b""  # the shape of an event of nothing but text
        self._speaker: ChoiceReader | None = None  # the choice whose text it is
        self._quick: ChoiceReader | None = None  # the same, while an event begins next and its text may pass
        self._looks = 0

    def _new_choice(self, index: int) -> ChoiceReader:
        return ChoiceReader(index)

    def feed(self, data: bytes) -> Events:
        """What `data` says."""
        quick = self._quick
        if quick is not None and data.startswith(self._before) and data.endswith(self._behind):
            try:  # with its quotes it is one string, or else something that only looked like this event
                text = _string(data[len(self._before) - 1 : 1 - len(self._behind)])
            except wire.UNREADABLE:
                text = ""
            if text:
                event = _new(ReplyTextDelta)
                event.choice = quick.index
                event.text = text
                event.raw = data
                return [event]
        events = super().feed(data)
        speaker, stream = self._speaker, self._answer.stream
        idle = speaker is not None and speaker.plain and stream is not None and stream.idle
        self._quick = speaker if idle else None
        return events

    def close(self) -> Events:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        self._quick = None
        return super().close()

    def _read(self, fields: Fields, event: sse.Event | None, events: Events) -> None:
        if event is not None and event.raw is not None and event.name is None and self._named:
            text = self._forwardable(fields)
            if text is not None:
                text.raw = event.raw
                events.append(text)
                if self._looks < _LOOKS:
                    self._remember(text, event.raw)
                return
        super()._read(fields, event, events)

    def _forwardable(self, chunk: dict[str, Json]) -> ReplyTextDelta | None:
        """The text of a chunk that holds nothing else: the common case, and what may be forwarded as it came."""
        choices = chunk.get("choices")
        if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
            return None
        choice = choices[0]
        delta, index = choice.get("delta"), choice.get("index")
        if type(delta) is not dict or len(delta) != 1 or type(index) is not int:
            return None
        text, name = delta.get("content"), self._name
        state = self._choices.get(index)
        if (
            type(text) is str
            and text
            and state is not None
            and state.plain
            and choice.get("finish_reason", "") is None
            and chunk.get("usage") is None
            and "error" not in chunk
            and chunk.get("id") == name.id
            and chunk.get("created") == name.created
            and chunk.get("model") == name.model
            and chunk.get("object") == "chat.completion.chunk"
        ):
            return ReplyTextDelta(index, text)
        return None

    def _remember(self, event: ReplyTextDelta, raw: bytes) -> None:
        """Keep what stands before and behind the text of this event, if that is all there is to it."""
        text, content = event.text.encode(), _content(raw)
        known = self._speaker is not None and raw.startswith(self._before)
        if known or content is None or _escaped(text) is not None:
            return
        self._looks += 1
        before, behind = raw[: content.end()], raw[content.end() + len(text) :]
        try:
            again = self._forwardable(_decode(before[6:] + b"x" + behind))
        except wire.UNREADABLE:
            return
        if before + text + behind == raw and again == ReplyTextDelta(event.choice, "x"):
            self._before, self._behind, self._speaker = before, behind, self._choices[event.choice]

    def _start(self, fields: Fields, events: Events) -> None:
        super()._start(fields, events)
        name = self._name
        self._named = name.id is not None and name.created is not None and name.model is not None

    def _fail(self, error: UpstreamError, events: Events) -> None:
        self._speaker = None
        super()._fail(error, events)
