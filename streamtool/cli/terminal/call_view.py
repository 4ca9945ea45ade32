r"""View of a call for approval: its arguments one per line, long ones shortened, and an edit to a file as a diff.

The reader is about to decide whether the call may be executed. Text from the model must therefore not be able to move
the cursor, hide itself or change the writing direction: characters that do so are shown as escapes (`\x1b`, `\u202e`).
Shortened text shows how much was omitted, and can be displayed in full.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping

from rich.text import Text

from streamtool.agent import ToolCallEnd
from streamtool.cli.columns import fit
from streamtool.cli.terminal.edits import Edit, edit_of
from streamtool.core.json_value import Json

_BLOCK = 12
"""Maximum number of lines of text to show."""
_DIFF = 60
"""Maximum number of diff lines to show."""
_NAMES = 40
_STYLES = {"+": "green", "-": "red", "@": "cyan", "*": "bold"}


def escape_invisible(text: str) -> str:
    """Escape invisible and control characters. Newlines and tabs become spaces."""
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
    """Display of a call at a terminal that is `width` columns wide."""

    def __init__(self, call: ToolCallEnd, width: int) -> None:
        self.name = escape_invisible(call.name)
        self._width = max(width, 20)
        self._plain = escape_invisible(call.arguments)
        self.shortened = False
        """Whether the last display omitted anything."""
        try:
            given = json.loads(call.arguments)
        except (ValueError, RecursionError):
            given = None
        self._arguments: Mapping[str, Json] | None = given if isinstance(given, dict) else None
        self._edit = None if self._arguments is None else edit_of(self._arguments)

    @property
    def simple(self) -> bool:
        """Whether the call fits on one line and edits no file."""
        return self._edit is None and len(self.name) + len(self._plain) + 4 <= self._width

    def line(self, before: int = 0, behind: int = 0) -> str:
        """Return the call on one line, with this many columns left free before and after it."""
        room = max(self._width - before - behind - len(self.name) - 2, 8)
        return f"{fit(self.name, self._width // 2)}({fit(self._plain, room)})"

    def lines(self, *, whole: bool = False) -> Iterator[Text]:
        """Yield the arguments, one per line, and the diff. If `whole` is true, nothing is shortened."""
        self.shortened = False
        if self._arguments is None:
            yield from self._block("arguments", self._plain.split("\n"), whole=whole)
            return
        shown = frozenset[str]() if self._edit is None else self._edit.keys
        for key, value in self._arguments.items():
            if key not in shown:
                yield from self._argument(fit(escape_invisible(key), _NAMES), value, whole=whole)
        if self._edit is not None:
            yield from self._diff(self._edit, whole=whole)

    def _argument(self, key: str, value: Json, *, whole: bool) -> Iterator[Text]:
        if isinstance(value, str) and "\n" in value.strip("\n"):
            yield from self._block(key, value.split("\n"), whole=whole)
            return
        text = escape_invisible(json.dumps(value, ensure_ascii=False))
        room = self._width - len(key) - 4
        if whole or len(text) <= room:
            yield Text.assemble((f"  {key}: ", "bold"), text)
            return
        self.shortened = True
        size = f"  ({len(text):,} characters)"
        yield Text.assemble((f"  {key}: ", "bold"), fit(text, max(room - len(size), 8)), (size, "dim"))

    def _block(self, key: str, lines: list[str], *, whole: bool) -> Iterator[Text]:
        yield Text.assemble((f"  {key}:", "bold"), (f" {len(lines)} lines", "dim"))
        for line in self._first_lines(lines, _BLOCK, whole=whole):
            yield Text.assemble(("  │ ", "dim"), self._fit(line, 4, whole=whole))
        yield from self._omission(lines, _BLOCK, whole=whole)

    def _diff(self, edit: Edit, *, whole: bool) -> Iterator[Text]:
        if edit.note:
            yield Text(f"  ({edit.note})", "yellow")
        if not edit.lines:
            yield Text("  (this changes nothing)", "yellow")
        lines = list(edit.lines)
        for line in self._first_lines(lines, _DIFF, whole=whole):
            style = "bold" if line.startswith(("--- ", "+++ ")) else _STYLES.get(line[:1], "")
            yield Text("  " + self._fit(line, 2, whole=whole), style)
        yield from self._omission(lines, _DIFF, whole=whole)

    def _first_lines(self, lines: list[str], most: int, *, whole: bool) -> list[str]:
        return lines if whole or len(lines) <= most + 1 else lines[:most]

    def _omission(self, lines: list[str], most: int, *, whole: bool) -> Iterator[Text]:
        if not whole and len(lines) > most + 1:
            self.shortened = True
            yield Text(f"  … {len(lines) - most:,} more lines", "dim")

    def _fit(self, line: str, before: int, *, whole: bool) -> str:
        text = escape_invisible(line.expandtabs(4))
        if whole:
            return text
        cut = fit(text, self._width - before)
        self.shortened = self.shortened or cut != text
        return cut
