"""JSON that stands inside of a JSON string: arguments given as a string, once or more often.

The escapes of the outer string are decoded piece by piece (`Decoder`), and a second reader (`Nested`) mends the inner
JSON in the same pass. Nothing is collected: what arrives in a piece of the outer string leaves with it.
"""

import re
from collections.abc import Callable, Generator
from json.decoder import scanstring  # type: ignore[attr-defined]  # the stubs lack the function that json itself uses
from json.encoder import encode_basestring

from statemachine.buffer import Ended, Grammar, Mismatch
from statemachine.emitter import Sink
from statemachine.json.state import JsonState
from statemachine.json.text import CLOSERS, QUOTES, escape, skip, string_run, value
from statemachine.reader import UNLIMITED, Reader

half_pair = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z").search
quotes = re.compile(r'\\.|"').sub


def unescape(text: str) -> str:
    """The text of a piece of a JSON string, its escapes valid and whole."""
    return str(scanstring(text + '"', 0, False)[0]) if "\\" in text else text


def unescape_loose(text: str) -> str:
    """The same for a string in other quotes: double quotes may stand in it as they are."""
    return unescape(quotes(lambda found: '\\"' if found[0] == '"' else found[0], text))


def whole_escapes(text: str) -> tuple[str, str]:
    """The text without the first half of a surrogate pair at its end, and that half."""
    found = half_pair(text, max(0, len(text) - 64)) if text[-6:-4] == "\\u" else None
    return (text[: found.start(1)], found[1]) if found else (text, "")


def an_object(reader: Reader, state: JsonState) -> Grammar:
    """One JSON object, or a string that holds one; an empty text is an object without members."""
    try:
        yield from skip(reader, state)
    except Ended:
        reader.out("{}")
        return
    if reader.text[reader.at] in QUOTES:
        yield from holds_object(reader)
        yield from doubled(reader, state, "double_encoded")
    elif reader.text[reader.at] == "{":
        yield from value(reader, state)
    else:
        raise Mismatch


class Nested:
    """JSON inside of a JSON string: `push` takes decoded pieces of the string and gives back strict JSON."""

    __slots__ = ("_grammar", "_reader", "broken", "complete")

    def __init__(self, state: JsonState, inner: Callable[[Reader, JsonState], Grammar] = an_object) -> None:
        self.complete = False
        """True once the inner value is complete."""
        self.broken = False
        """True once the inner text cannot be read."""
        self._reader = reader = Reader()
        reader.sink, reader.target, reader.room = Sink.SYNTAX, True, UNLIMITED
        self._grammar = self._read(state, inner(reader, state))
        next(self._grammar)

    def _read(self, state: JsonState, inner: Grammar) -> Grammar:
        """The inner value, then white space."""
        reader = self._reader
        yield
        try:
            yield from inner
            self.complete = True
            yield from skip(reader, state)
            self.broken = True
        except Mismatch:
            self.broken = True
        except Ended:
            pass
        while not reader.ended:
            reader.at = len(reader.text)
            yield

    def readable(self) -> bool:
        """True if all that came was one whole object."""
        return self.complete and not self.broken

    def push(self, text: str) -> str:
        """The strict JSON that this piece brings."""
        reader = self._reader
        scan = reader.scan
        if scan is not None and scan(text) is None:
            return text
        run = reader.run
        if run is not None and run.convert is None:
            whole = reader.text + text if reader.text else text
            found = run.whole(whole)
            if found is not None:
                if found.lastindex is None:
                    reader.text, reader.scan = "", run.search
                    return whole
                cut = found.start(1)
                reader.text, reader.scan = whole[cut:], None
                return whole[:cut]
        return self._advance(text)

    def finish(self) -> str:
        """What the end of the string brings."""
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


def holds_object(reader: Reader) -> Generator[None, None, None]:
    """Nothing, if the string that begins here holds an object, a string again, or nothing.

    Raises:
        Mismatch: it holds something else.

    """
    while True:
        found = opens_object(reader.text, reader.at)
        if found is None:
            raise Mismatch
        if found.lastindex == 1:
            return
        yield from reader.more()


def doubled(reader: Reader, state: JsonState, name: str) -> Grammar:
    """A JSON object given as a JSON string: decoded and mended in one pass, and emitted as the object.

    `name` is what to call this mend; "" if it is none. While the object is open, a quote that is not escaped is the
    object's.

    Raises:
        Mismatch: the string holds no object.

    """
    quote = reader.text[reader.at]
    if name:
        state.mend(name)
    state.around = None
    inner, level = Nested(state), len(state.stack)
    target = reader.target
    decoder = Decoder(inner, unescape if quote == '"' else unescape_loose)
    state.cut = state.quoted = True
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
            state.mend("unescaped_quote")  # it belongs to what the string holds
            reader.take(1, "repair")
            reader.out(decoder.decode('\\"' if char == '"' else char))
        elif char == "\\":
            captured: list[str] = []
            reader.target = captured
            try:
                yield from escape(reader, state)
            finally:
                reader.target = target
            reader.out(decoder.decode("".join(captured)))
        else:
            state.mend("control_character")
            reader.out(decoder.decode(encode_basestring(reader.take(1, "repair"))[1:-1]))
    reader.out(decoder.rest() + inner.finish())
    if not inner.readable():
        raise Mismatch
    state.cut = state.quoted = False
    reader.take(1)


class Decoder:
    """The conversion of a run: the text of a string, decoded, through the inner reader. Joins surrogate escapes."""

    __slots__ = ("half", "inner", "unescape")

    def __init__(self, inner: Nested, unescape: Callable[[str], str]) -> None:
        self.inner = inner
        self.unescape = unescape
        self.half = ""

    def decode(self, text: str) -> str:
        """Strict JSON of the inner value that this piece of the outer string brings."""
        if self.half or "\\" in text:
            text, self.half = whole_escapes(self.half + text)
            text = self.unescape(text)
        return self.inner.push(text) if text else ""

    def rest(self) -> str:
        """What a lone half brings."""
        half, self.half = self.half, ""
        return self.inner.push(self.unescape(half)) if half else ""
