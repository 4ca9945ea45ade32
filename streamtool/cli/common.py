"""What the commands share: styled lines, files that may be standard input, settings, the tools of `--tools`."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from streamtool.errors import SettingsError

if TYPE_CHECKING:
    import rich.console

    from streamtool.settings import Settings

CONFIG = "STREAMTOOL_CONFIG"
"""The variable that names the settings file."""

HARMLESS = {code: "�" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a terminal would obey; a model, a tool or an upstream has no business with it."""


class Screen:
    """Standard output in lines of styled pieces: colours on a terminal, plain text elsewhere. Every line is flushed."""

    __slots__ = ("_console",)

    def __init__(self) -> None:
        self._console: rich.console.Console | None = None
        if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
            from rich.console import Console  # noqa: PLC0415  nothing else pays for it

            console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
            self._console = console if console.is_terminal else None

    def line(self, *pieces: str | tuple[str, str], end: str = "\n") -> None:
        """Write pieces, each a text or a text with its style."""
        if self._console is None:
            print(*(piece if isinstance(piece, str) else piece[0] for piece in pieces), sep="", end=end, flush=True)
        else:
            from rich.text import Text  # noqa: PLC0415

            self._console.print(Text.assemble(*pieces), end=end)
            sys.stdout.flush()


def complain(sentence: str) -> None:
    """Say what is wrong, on standard error."""
    print(f"streamtool: {sentence.translate(HARMLESS)}", file=sys.stderr)


def quoted(text: str) -> str:
    """Text in quotes, line ends and the like visible."""
    return json.dumps(text, ensure_ascii=False)


def open_source(name: str) -> BinaryIO:
    """The file to read, `-` being standard input. Raises SettingsError."""
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}", param=name) from None


def read_source(name: str) -> bytes:
    """All of a file, `-` being standard input. Raises SettingsError."""
    with open_source(name) as file:
        try:
            return file.read()
        except OSError as error:
            raise SettingsError(f"{name} cannot be read: {error.strerror}", param=name) from None


def read_settings(config: str | None, overrides: Mapping[str, Any]) -> "Settings":
    """Settings out of flags, environment and file (`config`, else the one that STREAMTOOL_CONFIG names)."""
    name = config or os.environ.get(CONFIG)
    try:
        text = read_source(name).decode() if name else None
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8", param="config") from None
    from streamtool.settings import load  # noqa: PLC0415  most commands read none

    return load(text, os.environ, overrides)


def read_tools(name: str) -> dict[str, Mapping[str, Any]]:
    """Tool name -> JSON Schema of its parameters, out of a JSON file.

    The file holds a list of OpenAI's tools (`{"type": "function", "function": {…}}`) or of their insides
    (`{"name": …, "parameters": …}`).
    Raises SettingsError, which names the entry.
    """
    try:
        entries = json.loads(read_source(name))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{name} is not JSON: {error}", param=name) from None
    if not isinstance(entries, list):
        raise SettingsError(f"{name}: expected a JSON list of tools", param=name)
    return dict(_tool(entry, f"{name}: tool {i}") for i, entry in enumerate(entries, 1))


def _tool(entry: Any, place: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(entry, dict) and "function" in entry:
        entry = entry["function"]
    if not isinstance(entry, dict):
        raise SettingsError(f"{place} is no JSON object")
    found, schema = entry.get("name"), entry.get("parameters")
    if not isinstance(found, str) or not found:
        raise SettingsError(
            f'{place} has no name; write {{"name": …, "parameters": …}} or {{"type": "function", "function": {{…}}}}'
        )
    if not isinstance(schema, dict | None):
        raise SettingsError(f"{place} ({found}): parameters are no JSON object")
    return found, schema or {}
