"""JSON inside a JSON string: arguments given as a string, encoded once or several times.

The escapes of the outer string are decoded piece by piece (`Decoder`), and a second reader (`Nested`) repairs the inner
JSON in the same pass. Nothing accumulates: each piece of the outer string is emitted as it arrives.
"""

import re
from collections.abc import Callable, Generator
from json.decoder import scanstring  # type: ignore[attr-defined]  # the stubs lack this function, which json itself uses
from json.encoder import encode_basestring

from statemachine.json.state import JsonState
from statemachine.json.text import CLOSERS, QUOTES, empty_object, escape, skip, string_run, value
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch
from statemachine.stream.emitter import Sink
from statemachine.stream.reader import UNLIMITED, Reader

high_surrogate = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z").search
quotes = re.compile(r'\\.|"').sub


def unescape(text: str) -> str:
    """Return the text of a piece of a JSON string whose escapes are valid and complete."""
    return str(scanstring(text + '"', 0, False)[0]) if "\\" in text else text


def unescape_loose(text: str) -> str:
    """Unescape a piece of a string in quotes other than double quotes, which may contain unescaped double quotes."""
    return unescape(quotes(lambda found: '\\"' if found[0] == '"' else found[0], text))


def split_surrogate(text: str) -> tuple[str, str]:
    """Split off the first half of a surrogate pair at the end of the text."""
    found = high_surrogate(text, max(0, len(text) - 64)) if text[-6:-4] == "\\u" else None
    return (text[: found.start(1)], found[1]) if found else (text, "")


def possibly_encoded_object(reader: Reader, state: JsonState) -> Grammar:
    """Read one JSON object, or a string that contains one; empty text is an object without members."""
    try:
        yield from skip(reader, state)
    except EndOfText:
        empty_object(reader, state)
        return
    if reader.text[reader.at] in QUOTES:
        yield from check_holds_object(reader)
        yield from encoded_object(reader, state, "double_encoded")
    elif reader.text[reader.at] == "{":
        yield from value(reader, state)
    else:
        raise Mismatch


class Nested:
    """Reader for JSON inside a JSON string: `push` takes decoded pieces of the string and returns strict JSON."""

    __slots__ = ("_grammar", "_reader", "broken", "complete")

    def __init__(
        self, state: JsonState, inner: Callable[[Reader, JsonState], Grammar] = possibly_encoded_object
    ) -> None:
        self.complete = False
        """Whether the inner value is complete."""
        self.broken = False
        """Whether the inner text cannot be read."""
        self._reader = reader = Reader()
        reader.sink, reader.target, reader.remaining = Sink.SYNTAX, True, UNLIMITED
        self._grammar = self._read(state, inner(reader, state))
        next(self._grammar)

    def _read(self, state: JsonState, inner: Grammar) -> Grammar:
        """Read the inner value, then whitespace."""
        reader = self._reader
        yield
        try:
            yield from inner
            self.complete = True
            yield from skip(reader, state)
            self.broken = True
        except Mismatch:
            self.broken = True
        except EndOfText:
            pass
        while not reader.ended:
            reader.at = len(reader.text)
            yield

    def readable(self) -> bool:
        """Return whether the input was exactly one complete value."""
        return self.complete and not self.broken

    def push(self, text: str) -> str:
        """Return the strict JSON that this piece yields."""
        reader = self._reader
        scan = reader.scan
        if scan is not None and scan(text) is None:
            return text
        run = reader.run
        if run is not None and run.convert is None:
            whole = reader.text + text if reader.text else text
            found = run.fullmatch(whole)
            if found is not None:
                if found.lastindex is None:
                    reader.text, reader.scan = "", run.search
                    return whole
                cut = found.start(1)
                reader.text, reader.scan = whole[cut:], None
                return whole[:cut]
        return self._advance(text)

    def finish(self) -> str:
        """Return the strict JSON that the end of the string yields."""
        self._reader.ended = True
        return self._advance("")

    def _advance(self, text: str) -> str:
        reader = self._reader
        reader.append(text)
        reader.disarm()
        next(self._grammar, None)
        reader.compact()
        return "".join(getattr(event, "text", "") for event in reader.emitter.collect())


opens_object = re.compile(
    r"[\"'\u201c\u201d\u2018\u2019](?:[ \t\r\n]|\\[nrt]){0,64}+(?:(\{|\\\"|[\"'\u201d\u2019])|(\\?\Z))"
).match


def check_holds_object(reader: Reader) -> Generator[None, None, None]:
    """Check that the string that begins here contains an object, another string, or nothing.

    Raises:
        Mismatch: it contains something else.
    """
    while True:
        found = opens_object(reader.text, reader.at)
        if found is None:
            raise Mismatch
        if found.lastindex == 1:
            return
        yield from reader.more()


def encoded_object(reader: Reader, state: JsonState, name: str) -> Grammar:
    """Read a JSON object given as a JSON string: decode and repair it in one pass, and emit it as an object.

    `name` is the repair to record, or "" if reading a string is not a repair. While the object is open, an unescaped
    quote is part of the object.

    Raises:
        Mismatch: the string does not contain an object.
    """
    quote = reader.text[reader.at]
    if name:
        state.add_repair(name)
    state.around = None
    inner, level = Nested(state), len(state.stack)
    target = reader.target
    decoder = Decoder(inner, unescape if quote == '"' else unescape_loose)
    state.cut = state.quoted = True
    state.encoded = level
    reader.take(1)
    run = string_run(CLOSERS[quote], decoder.decode)
    while True:
        yield from reader.flow(run)
        if inner.broken:
            raise Mismatch
        if reader.at >= len(reader.text):
            yield from reader.more()
            continue
        char = reader.text[reader.at]
        if char in CLOSERS[quote]:
            if len(state.stack) <= level:
                break
            state.add_repair("unescaped_quote")  # part of the inner JSON
            reader.take(1, "repair")
            reader.emit_arguments(decoder.decode('\\"' if char == '"' else char))
        elif char == "\\":
            captured: list[str] = []
            reader.target = captured
            try:
                yield from escape(reader, state)
            finally:
                reader.target = target
            reader.emit_arguments(decoder.decode("".join(captured)))
        else:
            state.add_repair("control_character")
            reader.emit_arguments(decoder.decode(encode_basestring(reader.take(1, "repair"))[1:-1]))
    reader.emit_arguments(decoder.rest() + inner.finish())
    if not inner.readable():
        raise Mismatch
    state.cut = state.quoted = False
    state.encoded = None
    reader.take(1)


class Decoder:
    """Decodes the text of a string for a run and feeds it to the inner reader. Joins surrogate pairs that arrive in two
    pieces.
    """

    __slots__ = ("high_surrogate", "inner", "unescape")

    def __init__(self, inner: Nested, unescape: Callable[[str], str]) -> None:
        self.inner = inner
        self.unescape = unescape
        self.high_surrogate = ""

    def decode(self, text: str) -> str:
        """Return, as strict JSON, the part of the inner value that this piece of the outer string yields."""
        if self.high_surrogate or "\\" in text:
            text, self.high_surrogate = split_surrogate(self.high_surrogate + text)
            text = self.unescape(text)
        return self.inner.push(text) if text else ""

    def rest(self) -> str:
        """Return, as strict JSON, the part of the inner value that a trailing unpaired surrogate yields, or "" if the
        string does not end with one.
        """
        half, self.high_surrogate = self.high_surrogate, ""
        return self.inner.push(self.unescape(half)) if half else ""
