"""Where a JSON value goes that is said: a string decoded as it streams, any other value as its JSON text."""

from statemachine.emitter import Emitter, Sink
from statemachine.json import nested as json_nested


class Spoken:
    """A target that emits as text or reasoning what it takes; what exceeds the limit is discarded."""

    __slots__ = ("_emitter", "_half", "_length", "_limit", "_quoted", "_sink")

    def __init__(self, emitter: Emitter, sink: Sink, limit: int, *, quoted: bool) -> None:
        self._emitter = emitter
        self._sink = sink
        self._limit = limit
        """In characters; 0: none."""
        self._quoted = quoted
        """The value is a string."""
        self._half = ""
        """The first half of a surrogate pair."""
        self._length = 0

    def append(self, piece: str) -> None:
        """Says a piece of strict JSON."""
        if self._quoted:
            if piece == '"':
                return
            piece, self._half = json_nested.whole_escapes(self._half + piece)
            piece = json_nested.unescape(piece)
        room = len(piece)
        if self._limit:
            room = max(0, self._limit - self._length)
        self._emitter.put(self._sink, piece[:room])
        if room < len(piece):
            self._emitter.because("limit")
            self._emitter.put(Sink.DISCARD, piece[room:])
        self._length += len(piece)
