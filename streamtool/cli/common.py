"""Helpers shared by the commands: functions that write styled output and read files, standard input, settings,
and the tools and formats given with `--tools` and `--formats`.
"""

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from streamtool.core.errors import SettingsError

if TYPE_CHECKING:
    import rich.console

    from streamtool.settings import Settings

CONFIG = "STREAMTOOL_CONFIG"
"""Environment variable that names the settings file."""
SETTINGS: Final = "streamtool.toml"
"""Name of the default settings files."""

_SETTINGS_SIZE = 1024 * 1024
"""Maximum size of a settings file, in bytes."""
_AT_ONCE: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"))
"""Flags that open a file without waiting, and without side effects."""

CONTROL_CHARACTERS = {code: "�" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Translation table that replaces control characters that a terminal would interpret."""


class Screen:
    """Writes lines of styled pieces to standard output: colored on a terminal, plain elsewhere. Flushes every line."""

    def __init__(self) -> None:
        self._console: rich.console.Console | None = None
        if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
            try:
                from streamtool.cli.console import PipeConsole  # noqa: PLC0415  imported on demand
            except ModuleNotFoundError:  # the `serve` extra is not installed
                return
            console = PipeConsole(file=sys.stdout, highlight=False, soft_wrap=True)
            self._console = console if console.is_terminal else None

    @property
    def is_terminal(self) -> bool:
        """Whether the output is a terminal."""
        return self._console is not None

    def line(self, *pieces: str | tuple[str, str], end: str = "\n") -> None:
        """Write a line of pieces, each either a string or a tuple of text and style."""
        if self._console is None:
            print(*(piece if isinstance(piece, str) else piece[0] for piece in pieces), sep="", end=end, flush=True)
        else:
            from rich.text import Text  # noqa: PLC0415

            self._console.print(Text.assemble(*pieces), end=end)
            sys.stdout.flush()


def print_error(sentence: str) -> None:
    """Print a message to standard error."""
    print(f"streamtool: {sentence.translate(CONTROL_CHARACTERS)}", file=sys.stderr)


def quoted(text: str) -> str:
    """Return the text as a JSON string, so that newlines and control characters are visible."""
    return json.dumps(text, ensure_ascii=False)


def open_source(name: str) -> BinaryIO:
    """Open a file for reading; `-` is standard input. Raises SettingsError."""
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}", param=name) from None


def read_source(name: str) -> bytes:
    """Return the content of a file; `-` is standard input. Raises SettingsError."""
    with open_source(name) as file:
        try:
            return file.read()
        except OSError as error:
            raise SettingsError(f"{name} cannot be read: {error.strerror}", param=name) from None


def _open_again(name: str) -> BinaryIO:
    """Open a regular file, which can be read twice and never blocks. Raises SettingsError for any other file.

    The descriptor is checked, so another file cannot replace the checked one; opening it does not wait for a writer.
    """
    try:
        if name != "-":
            file = os.fdopen(os.open(name, _AT_ONCE), "rb")
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file
            file.close()
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}", param=name) from None
    raise SettingsError(f"{name} is not a regular file and can be read only once", param=name)


def settings_file(config: str | None) -> str | None:
    """Return the name of the settings file: `config`, the one named by STREAMTOOL_CONFIG, or the first of the default
    files that exists.
    """
    return config or os.environ.get(CONFIG) or next((str(path) for path in default_files() if path.is_file()), None)


def default_files() -> Sequence[Path]:
    """Return the default settings files: in the working directory, and in the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    return Path(SETTINGS), folder / "streamtool" / SETTINGS


def read_settings_file(config: str | None, *, again: bool = False) -> str:
    """Return the text of the settings file (see `settings_file`), or "" without one. The name of a default file is
    printed.

    If it is read `again`, it must be a regular file. Raises SettingsError.
    """
    name = settings_file(config)
    if name is None:
        return ""
    if not (again or config or os.environ.get(CONFIG)):
        print_error(f"settings from {name}")
    with _open_again(name) if again else open_source(name) as file:
        try:
            content = file.read(_SETTINGS_SIZE + 1)
        except OSError as error:
            raise SettingsError(f"{name} cannot be read: {error.strerror}", param=name) from None
    if len(content) > _SETTINGS_SIZE:
        raise SettingsError(f"{name} is larger than {_SETTINGS_SIZE} bytes", param="config")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8", param="config") from None


def read_settings(config: str | None, overrides: Mapping[str, Any]) -> "Settings":
    """Load the settings from flags, the environment, the settings file and the calibrations. Raises SettingsError."""
    text = read_settings_file(config)
    from streamtool.cli.state import load_calibrations  # noqa: PLC0415  imported on demand
    from streamtool.settings import load  # noqa: PLC0415

    try:
        return load(text, os.environ, overrides, load_calibrations(None))
    except SettingsError as error:
        raise located(error, config) from None


def located(error: SettingsError, config: str | None) -> SettingsError:
    """Return the error with the name of the settings file and the line in front, if it is about a line."""
    name = settings_file(config)
    if name is None or error.line is None:
        return error
    return SettingsError(f"{name}:{error.line}: {error.message}", param=error.param, code=error.code)


def read_formats(names: str) -> list[str]:
    """Read the names given with `--formats`. Raises SettingsError, which suggests the most similar name."""
    from statemachine import FORMATS  # noqa: PLC0415  imported on demand
    from streamtool.settings.readers import format_name  # noqa: PLC0415

    found = [format_name(name.strip(), "--formats") for name in names.split(",") if name.strip()]
    if not found:
        raise SettingsError(f"--formats: name at least one of {', '.join(FORMATS)}")
    return found


def read_tools(name: str) -> dict[str, Mapping[str, Any]]:
    """Read tools from a JSON file and return a mapping of their names to the JSON Schemas of their parameters.

    The file contains a list of tools in OpenAI's form (`{"type": "function", "function": {…}}`) or in the short form
    (`{"name": …, "parameters": …}`). Raises SettingsError, which names the invalid entry.
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
        raise SettingsError(f"{place} is not a JSON object")
    found, schema = entry.get("name"), entry.get("parameters")
    if not isinstance(found, str) or not found:
        raise SettingsError(
            f'{place} has no name; write {{"name": …, "parameters": …}} or {{"type": "function", "function": {{…}}}}'
        )
    if not isinstance(schema, dict | None):
        raise SettingsError(f"{place} ({found}): parameters must be a JSON object")
    return found, schema or {}
