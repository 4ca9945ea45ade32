"""The state of one call on its way to the client, from its name to its end.

The call's arguments are passed on as they arrive, unless the call is buffered until complete (`arguments = "complete"`)
or belongs to a custom tool, whose raw text is extracted from the surrounding JSON. The arguments of native calls are
repaired while they are passed on.
"""

from collections.abc import Sequence
from typing import Final

from statemachine import ArgumentsDelta, CallEnd, Discarded, Event, Parser, TextDelta
from streamtool.filters.raw_input import RawInput
from streamtool.filters.repeated_calls import Source, Suspect
from streamtool.forcing.rules import Rules
from streamtool.schemas.validator import InvalidArguments, Validator

_OPENER: Final = '<tool_call>{"name": "call", "arguments": '
_CLOSER: Final = "}</tool_call>"


class NativeArguments:
    """A streaming repair of one native call's arguments.

    Some upstreams make native calls even though the request contained no tools, and not all of them write valid JSON.
    But the arguments that the client has received must be the beginning of a JSON object at all times. These arguments
    are therefore treated like any others: a parser reads them as the body of a textual call.
    """

    __slots__ = ("_blank", "_parser", "complete", "malformed", "repairs")

    def __init__(self) -> None:
        self._parser = Parser({"call": {}}, formats=("tool_call",))
        self._parser.feed(_OPENER)
        self._blank = True
        self.complete = False
        """Whether the arguments are one complete object."""
        self.malformed = 0
        """Number of characters that were not part of the object."""
        self.repairs: tuple[str, ...] = ()

    def feed(self, text: str) -> str:
        """Process a piece of the arguments, and return the text that may be passed on."""
        if self._blank and not text.strip():
            return ""
        self._blank = False
        events = self._parser.feed(text)
        strange = Discarded | TextDelta
        self.malformed += sum(len(event.text) for event in events if isinstance(event, strange))
        return self._visible(events)

    def close(self, *, complete: bool) -> str:
        """Return the remaining arguments, or "" if they are blank. `complete` means that the upstream itself ended the
        call.
        """
        if self._blank:
            self.complete = complete
            return ""
        shown = self._visible(self._parser.feed(_CLOSER)) if complete else ""
        shown += self._visible(self._parser.close(None if complete else "length"))
        self.complete = self.complete and complete
        return shown

    def _visible(self, events: list[Event]) -> str:
        shown = []
        for event in events:
            if isinstance(event, ArgumentsDelta):
                shown.append(event.text)
            elif isinstance(event, CallEnd):
                self.complete, self.repairs = event.complete, event.repairs
        return "".join(shown)


class OpenCall:
    """A call that has begun and has not ended. If `buffered` or `withheld` is true, its arguments are held back until
    it is complete; if there are `suspects`, until they differ from those of the earlier calls.
    """

    __slots__ = (
        "_native",
        "_pending",
        "_raw",
        "_schema",
        "buffered",
        "buffered_size",
        "committed",
        "id",
        "malformed",
        "name",
        "repairs",
        "signature",
        "source",
        "suspects",
        "withheld",
    )

    def __init__(
        self,
        rules: Rules,
        id: str,
        name: str,
        source: Source,
        *,
        signature: str | None = None,
        suspects: Sequence[Suspect] = (),
        withheld: bool = False,
    ) -> None:
        self._schema = rules.tools.schemas.get(name)
        self.id = id
        self.name = name
        self.source = source
        self.signature = signature
        self.suspects = suspects or ()
        """Comparisons with earlier calls that this call may still repeat."""
        self.withheld = withheld and name not in rules.tools.complete
        """Whether the client does not see the call before its end, so that the model may be asked again."""
        self.committed = False
        """Whether the client has seen the start of the call."""
        self.buffered = name in rules.tools.complete
        self._pending: list[str] = []
        self.buffered_size = 0
        """Number of buffered characters."""
        self._raw = RawInput() if name in rules.tools.custom else None
        self._native = NativeArguments() if source == "native" and self._raw is None else None
        self.repairs: tuple[str, ...] = ()
        self.malformed = 0
        """Number of characters in a native call that were not part of its arguments."""

    @property
    def direct(self) -> bool:
        """Whether the arguments are passed on unchanged, as they arrive."""
        return not (self.buffered or self.withheld or self.suspects) and self._raw is None and self._native is None

    @property
    def buffered_arguments(self) -> str:
        """The buffered arguments so far, as one string."""
        return "".join(self._pending)

    def feed(self, text: str) -> str:
        """Process a piece of the arguments, and return the text that may be passed on now."""
        if self._native is not None:
            text = self._native.feed(text)
        if self.buffered:
            self._buffer(text)
            return ""
        if self._raw is not None:
            text = self._raw.feed(text)
        if not (self.suspects or self.withheld):
            return text
        self._buffer(text)
        self.suspects = [suspect for suspect in self.suspects if suspect.feed(text)]
        return "" if self.suspects or self.withheld else self._release()

    def _buffer(self, text: str) -> None:
        self._pending.append(text)
        self.buffered_size += len(text)

    def _release(self) -> str:
        text = self.buffered_arguments
        self._pending.clear()
        self.buffered_size = 0
        return text

    def end_native(self, *, complete: bool) -> tuple[str, bool]:
        """End a native call. Return its remaining arguments, and whether it is complete.

        For any other call, return an empty string and `complete` unchanged.
        """
        native, self._native = self._native, None
        if native is None:
            return "", complete
        text = native.close(complete=complete)
        self.repairs, self.malformed = native.repairs, native.malformed
        return (self.feed(text) if text else ""), native.complete

    def check(self) -> InvalidArguments | None:
        """Coerce the buffered arguments to the schema as far as possible, and return the remaining fault, or None if
        they are valid.

        Calls to custom tools are not checked.
        """
        if self._raw is not None:
            return None
        text, invalid, repairs = Validator.of(self._schema).check(self.buffered_arguments)
        self._pending = [text]
        self.repairs += repairs
        return invalid

    def close(self, *, complete: bool) -> str:
        """Return the arguments that have not been passed on yet: all of them if the call was buffered."""
        text = self._release()
        if self._raw is not None:
            text = (self._raw.feed(text) if self.buffered else text) + (self._raw.close() if complete else "")
        return text
