"""One call on its way to the client, from its name to its end.

Its arguments go out as they come, unless the call waits until it is whole (`arguments = "complete"`), or is that of a
custom tool, whose raw text is taken out of the JSON around it. A native call of the upstream is mended on the way.
"""

from streamtool.policy.native_arguments import NativeArguments
from streamtool.policy.raw_input import RawInput
from streamtool.policy.rules import Rules
from streamtool.validation.validator import InvalidArguments, Validator


class OpenCall:
    """A call that has begun and has not ended. `waits`: it goes out when it is whole."""

    __slots__ = (
        "_native", "_pending", "_raw", "_schema", "direct", "id", "malformed", "name", "repairs", "signature",
        "size", "waits",
    )  # fmt: skip

    def __init__(self, rules: Rules, id: str, name: str, *, native: bool, signature: str | None = None) -> None:
        self._schema = rules.tools.schemas.get(name)
        self.id = id
        self.name = name
        self.signature = signature
        self.waits = name in rules.tools.complete
        self._pending: list[str] = []
        self.size = 0
        """Characters that wait."""
        self._raw = RawInput() if name in rules.tools.custom else None
        self._native = NativeArguments() if native and self._raw is None else None
        self.direct = not self.waits and self._raw is None and self._native is None
        """Its arguments go out as they come."""
        self.repairs: tuple[str, ...] = ()
        self.malformed = 0
        """Characters of a native call that were no part of its arguments."""

    @property
    def waiting(self) -> str:
        """The arguments that wait."""
        return "".join(self._pending)

    def feed(self, text: str) -> str:
        """What the client is to see of the arguments with this piece of them."""
        if self._native is not None:
            text = self._native.feed(text)
        if self.waits:
            self._pending.append(text)
            self.size += len(text)
            return ""
        return text if self._raw is None else self._raw.feed(text)

    def end_native(self, *, complete: bool) -> tuple[str, bool]:
        """What is left of a native call, and whether it is complete. Of any other call nothing is."""
        native, self._native = self._native, None
        if native is None:
            return "", complete
        text = native.close(complete=complete)
        self.repairs, self.malformed = native.repairs, native.malformed
        return (self.feed(text) if text else ""), native.complete

    def check(self) -> InvalidArguments | None:
        """What is wrong with the arguments that waited; they are whole, and coerced as far as that is possible."""
        if self._raw is not None:
            return None
        text, invalid, repairs = Validator.of(self._schema).check(self.waiting)
        self._pending = [text]
        self.repairs += repairs
        return invalid

    def close(self, *, complete: bool) -> str:
        """The last of the arguments; all of them if the call waited."""
        text = self.waiting if self.waits else ""
        if self._raw is not None:
            text = self._raw.feed(text) + (self._raw.close() if complete else "")
        return text
