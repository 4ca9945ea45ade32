"""A call as a person reads it: its arguments one a line, long ones shortened, and an edit of a file as a diff.

Whoever looks is about to say whether it may be executed. So nothing that a model writes can move the cursor, hide
itself or turn the direction of writing: such characters are shown as escapes (`\\x1b`, `\\u202e`). What is shortened
says by how much, and can be shown whole.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from streamtool.agent import ToolCallEnd
from streamtool.cli.columns import fitted
from streamtool.cli.terminal.edits import Edit, edit_of

Json = Any  # a decoded JSON value

_BLOCK = 12
"""Lines of a text that are shown."""
_DIFF = 60
"""Lines of a diff that are shown."""
_NAMES = 40
_STYLES = {"+": "green", "-": "red", "@": "cyan", "*": "bold"}


def visible(text: str) -> str:
    """The text, with what cannot be seen, or does something, as escapes. Line ends and tabs are blanks."""
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if " " <= char <= "~":
        return char
    if char in "\t\n":
        return " "
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        code = ord(char)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char


class CallView:
    """What is shown of a call."""

    def __init__(self, call: ToolCallEnd, width: int) -> None:
        self.name = visible(call.name)
        self._width = max(width, 20)
        self._plain = visible(call.arguments)
        self.shortened = False
        """Some of it was left out in what was shown last."""
        try:
            given = json.loads(call.arguments)
        except (ValueError, RecursionError):
            given = None
        self._arguments: Mapping[str, Json] | None = given if isinstance(given, dict) else None
        self._edit = None if self._arguments is None else edit_of(self._arguments)

    @property
    def simple(self) -> bool:
        """The call is plain when it stands in one line of JSON."""
        return self._edit is None and len(self.name) + len(self._plain) + 4 <= self._width

    def line(self, before: int = 0, behind: int = 0) -> str:
        """The call in one line, with so many columns before and behind it."""
        room = max(self._width - before - behind - len(self.name) - 2, 8)
        return f"{fitted(self.name, self._width // 2)}({fitted(self._plain, room)})"

    def lines(self, *, whole: bool = False) -> Iterator[Text]:
        """The arguments, one a line, and the diff; `whole`: nothing is left out but what stands beyond the width."""
        self.shortened = False
        if self._arguments is None:
            yield from self._block("arguments", self._plain.split("\n"), whole=whole)
            return
        shown = frozenset[str]() if self._edit is None else self._edit.keys
        for key, value in self._arguments.items():
            if key not in shown:
                yield from self._argument(fitted(visible(key), _NAMES), value, whole=whole)
        if self._edit is not None:
            yield from self._diff(self._edit, whole=whole)

    def _argument(self, key: str, value: Json, *, whole: bool) -> Iterator[Text]:
        if isinstance(value, str) and "\n" in value.strip("\n"):
            yield from self._block(key, value.split("\n"), whole=whole)
            return
        text = visible(json.dumps(value, ensure_ascii=False))
        room = self._width - len(key) - 4
        if whole or len(text) <= room:
            yield Text.assemble((f"  {key}: ", "bold"), text)
            return
        self.shortened = True
        size = f"  ({len(text):,} characters)"
        yield Text.assemble((f"  {key}: ", "bold"), fitted(text, max(room - len(size), 8)), (size, "dim"))

    def _block(self, key: str, lines: list[str], *, whole: bool) -> Iterator[Text]:
        yield Text.assemble((f"  {key}:", "bold"), (f" {len(lines)} lines", "dim"))
        for line in self._some(lines, _BLOCK, whole=whole):
            yield Text.assemble(("  │ ", "dim"), self._within(line, 4, whole=whole))
        yield from self._rest(lines, _BLOCK, whole=whole)

    def _diff(self, edit: Edit, *, whole: bool) -> Iterator[Text]:
        if edit.note:
            yield Text(f"  ({edit.note})", "yellow")
        if not edit.lines:
            yield Text("  (this changes nothing)", "yellow")
        lines = list(edit.lines)
        for line in self._some(lines, _DIFF, whole=whole):
            style = "bold" if line.startswith(("--- ", "+++ ")) else _STYLES.get(line[:1], "")
            yield Text("  " + self._within(line, 2, whole=whole), style)
        yield from self._rest(lines, _DIFF, whole=whole)

    def _some(self, lines: list[str], most: int, *, whole: bool) -> list[str]:
        return lines if whole or len(lines) <= most + 1 else lines[:most]

    def _rest(self, lines: list[str], most: int, *, whole: bool) -> Iterator[Text]:
        if not whole and len(lines) > most + 1:
            self.shortened = True
            yield Text(f"  … {len(lines) - most:,} more lines", "dim")

    def _within(self, line: str, before: int, *, whole: bool) -> str:
        text = visible(line.expandtabs(4))
        if whole:
            return text
        cut = fitted(text, self._width - before)
        self.shortened = self.shortened or cut != text
        return cut
