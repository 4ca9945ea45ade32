"""Tolerant reader for an upstream's Chat Completions reply.

Theory of operation. `ChoicesReader` handles everything common to replies with choices; this module adds a fast path for
the most common chunk, which contains only a piece of text. Such a chunk is emitted with its original bytes in
`ReplyTextDelta.raw`. Decoding an entire chunk takes half a microsecond, but the chunks of one reply usually differ only
in their text. Once a text chunk has been decoded, the bytes before and after its text are therefore remembered, and in
later chunks that begin and end with the same bytes, only the text is decoded. A whole reply is read like a chunk whose
`delta` is the reply's `message`.

Facts about upstreams:
- Native calls may arrive even if the request contained no native tools. Only one call is open at a time: anything else
  that arrives before the call's arguments form a complete object is queued until the call ends. The queue stays empty
  if the upstream finishes each call before the next, as it should.
- A piece of text may end in the middle of a character, which `wire.Joiner` handles.

No input from an upstream makes this module raise an exception.
"""

import re
from typing import ClassVar, Final

import msgspec

from streamtool.core import sse
from streamtool.core.errors import UpstreamError
from streamtool.core.json_value import Json, JsonObject
from streamtool.core.reply import Reason, ReplyTextDelta
from streamtool.protocols.chat.choice import ChoiceReader
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.choices import ChoicesReader
from streamtool.protocols.shared.stream import Events

_new: Final = object.__new__  # bypasses `__init__`, because calling it from C would double the cost of an event
_decode: Final = wire.decode
_string: Final = msgspec.json.Decoder(str).decode
_content: Final = re.compile(rb'"content":[ ]?"').search
_escaped: Final = re.compile(rb'["\\\x00-\x1f]').search
_MAX_SHAPES: Final = 4  # maximum number of event shapes to remember, in case all of an upstream's events differ


class ReplyReader(ChoicesReader[ChoiceReader]):
    """Reader for one reply with `n` choices."""

    __slots__ = ("_after", "_before", "_fast_choice", "_named", "_shapes_learned", "_speaker")

    REASONS: ClassVar = {
        "length": Reason.LENGTH,
        "max_tokens": Reason.LENGTH,
        "content_filter": Reason.FILTER,
        "safety": Reason.FILTER,
        "stop_sequence": Reason.STOP_SEQUENCE,
    }
    """All other reasons (`stop`, `tool_calls`, `function_call`, `eos`, …) count as a plain stop."""

    def __init__(self, *, n: int = 1) -> None:
        super().__init__(n=n)
        self._named = False  # whether the reply has its own id, time and model, which a forwarded event repeats
        self._before = self._after = b""  # bytes around the quoted text of an event that contains only text
        self._speaker: ChoiceReader | None = None  # the choice that this event belongs to
        self._fast_choice: ChoiceReader | None = None  # the same choice, as long as its next event may be forwarded
        self._shapes_learned = 0

    def _new_choice(self, index: int) -> ChoiceReader:
        return ChoiceReader(index, self.tool_names)

    def feed(self, data: bytes) -> Events:
        """Return the reply events that `data` completes."""
        quick = self._fast_choice
        if quick is not None:
            rest = data.removeprefix(self._before)
            quoted = rest.removesuffix(self._after)
            # Whether something was removed shows in the identity, which takes less time to compare than lengths.
            if rest is not data and quoted is not rest and quoted.strip() is quoted:
                try:  # the rest is one string, unless the event only looks similar
                    text = _string(quoted)
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
        self._fast_choice = speaker if idle else None
        return events

    def close(self) -> Events:
        """Return the events at the end of the reply; a truncated reply ends with a `ReplyFailure`."""
        self._fast_choice = None
        return super().close()

    def _read(self, fields: JsonObject, event: sse.ServerSentEvent | None, events: Events) -> None:
        if event is not None and event.raw is not None and event.name is None and self._named:
            text = self._forwardable(fields)
            if text is not None:
                text.raw = event.raw
                events.append(text)
                if self._shapes_learned < _MAX_SHAPES:
                    self._remember(text, event.raw)
                return
        super()._read(fields, event, events)

    def _forwardable(self, chunk: dict[str, Json]) -> ReplyTextDelta | None:
        """Return the text of a chunk that contains nothing else and may be forwarded verbatim, as is true of most
        chunks, or None for any other chunk.
        """
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
            and type(created := chunk.get("created")) is int  # 1.0 and True equal 1
            and created == name.created
            and chunk.get("model") == name.model
            and chunk.get("object") == "chat.completion.chunk"
        ):
            return ReplyTextDelta(index, text)
        return None

    def _remember(self, event: ReplyTextDelta, raw: bytes) -> None:
        """Remember the bytes around the text of this event, if the event contains nothing else."""
        text, content = event.text.encode(), _content(raw)
        known = self._speaker is not None and raw.startswith(self._before)
        if known or content is None or _escaped(text) is not None:
            return
        self._shapes_learned += 1
        before, after = raw[: content.end() - 1], raw[content.end() + len(text) + 1 :]
        try:
            again = self._forwardable(_decode(b'%b"x"%b' % (before[6:], after)))
        except wire.UNREADABLE:
            return
        if b'%b"%b"%b' % (before, text, after) == raw and again == ReplyTextDelta(event.choice, "x"):
            self._before, self._after, self._speaker = before, after, self._choices[event.choice]

    def _start(self, fields: JsonObject, events: Events) -> None:
        super()._start(fields, events)
        name = self._name
        self._named = name.id is not None and name.created is not None and name.model is not None

    def _fail(self, error: UpstreamError, events: Events) -> None:
        self._speaker = None
        super()._fail(error, events)
