"""The line that somebody writes: with history, search and editing, by prompt_toolkit.

Enter sends what is there; alt-enter begins a new line, and a text of several lines that is pasted stays one. The
library is imported when a conversation begins, since it takes a tenth of a second. It needs asyncio, on which the
command runs.
"""

import os
import sys
from pathlib import Path
from typing import Any, Protocol

from streamtool.cli.terminal.sessions import private_folder
from streamtool.errors import SettingsError


class TaskSource(Protocol):
    """Where tasks come from."""

    async def read(self) -> str | None:
        """The next one, "" if it was given up; None: there are no more."""
        ...


class PromptLines:
    """Lines that somebody edits at a terminal. `history`: a file of earlier ones; None: only of this process."""

    def __init__(self, history: Path | None, commands: list[str]) -> None:
        """Prepare the terminal. Raises SettingsError where the library is missing."""
        try:
            from prompt_toolkit import PromptSession  # noqa: PLC0415  a tenth of a second
            from prompt_toolkit.completion import WordCompleter  # noqa: PLC0415
            from prompt_toolkit.history import FileHistory, History, InMemoryHistory  # noqa: PLC0415
            from prompt_toolkit.output import create_output  # noqa: PLC0415
        except ImportError:
            raise SettingsError(
                'a conversation needs prompt_toolkit, which the extra "serve" brings: pip install "streamtool[serve]"'
            ) from None
        kept: History = InMemoryHistory()
        if history is not None:
            try:
                private_folder(history.parent)
                os.close(os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
                kept = FileHistory(str(history))
            except OSError:  # a line is worth more than its memory
                pass
        self._session: Any = PromptSession(  # its type has a parameter that nothing here needs
            "> ",
            history=kept,
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=False,
            key_bindings=_keys(),
            prompt_continuation="  ",
            output=create_output(stdout=sys.stderr),  # standard output is for the model's text
            enable_suspend=True,
        )

    async def read(self) -> str | None:
        """The next task."""
        try:
            return str(await self._session.prompt_async(handle_sigint=False)).strip()
        except KeyboardInterrupt:  # the key, not the signal: the line is given up
            return ""
        except EOFError:
            return None


def _keys() -> Any:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent  # noqa: PLC0415

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
