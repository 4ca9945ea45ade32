"""Line editor with history, search and editing, based on prompt_toolkit.

Enter sends the text and alt-enter starts a new line. Pasted text remains a single entry even if it has several lines.
The library is imported only when a conversation begins, because the import takes a tenth of a second. It requires
asyncio, so the command runs on asyncio.
"""

import os
import sys
from pathlib import Path
from typing import Any, Protocol

from streamtool.cli.state import private_folder
from streamtool.core.errors import SettingsError


class TaskSource(Protocol):
    """Source of the tasks in a conversation."""

    async def read(self) -> str | None:
        """Read the next task. Return "" if the line was discarded, and None at the end of the input."""
        ...


class PromptLines:
    """Reads lines edited at a terminal. `history` is the file that stores them; if it is None, they are kept only in
    memory.
    """

    def __init__(self, history: Path | None, commands: list[str]) -> None:
        """Prepare the terminal. Raises SettingsError if the library is missing."""
        try:
            from prompt_toolkit import PromptSession  # noqa: PLC0415  slow to import
            from prompt_toolkit.completion import WordCompleter  # noqa: PLC0415
            from prompt_toolkit.history import FileHistory, History, InMemoryHistory  # noqa: PLC0415
            from prompt_toolkit.output import create_output  # noqa: PLC0415
        except ImportError:
            raise SettingsError('a conversation requires the extra "chat": pip install "streamtool[chat]"') from None
        kept: History = InMemoryHistory()
        if history is not None:
            try:
                private_folder(history.parent)
                os.close(os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
                kept = FileHistory(str(history))
            except OSError:  # the command can run without a history
                pass
        self._session: Any = PromptSession(  # its type parameter is not needed here
            "> ",
            history=kept,
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=False,
            key_bindings=_keys(),
            prompt_continuation="  ",
            output=create_output(stdout=sys.stderr),  # standard output carries the model's text
            enable_suspend=True,
        )

    async def read(self) -> str | None:
        """Let the user edit a task, and return it (see `TaskSource.read`)."""
        try:
            return str(await self._session.prompt_async(handle_sigint=False)).strip()
        except KeyboardInterrupt:  # the key, not the signal: discard the line
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
