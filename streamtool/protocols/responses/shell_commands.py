"""The commands of a shell call as the model writes them: the events that tell each, piece by piece.

They stand in JSON arguments (`{"commands": ["ls", …]}`) and flow once the key is read, wherever numbers alone precede
it. Arguments of another form are told when they are whole. Events: `response.shell_call_command.added`, `.delta` and
`.done` of the openai SDK 3.54, which name the item by its index alone.
"""

import re
from collections.abc import Sequence
from typing import Final

from streamtool.json_string import JsonString
from streamtool.protocols.stream import string

CommandEvent = tuple[bytes, bytes]
"""The name of an event, and its fields as JSON without braces; those that each event has are left out."""

_FIRST: Final = re.compile(
    r'\s*\{\s*(?:"(?:timeout_ms|max_output_length)"\s*:\s*(?:null|\d+)\s*,\s*)*"commands"\s*:\s*(\[\s*)?"'
)
_NEXT: Final = re.compile(r'\s*(?:,\s*"|\])')
_LONGEST: Final = 256  # characters between two commands, and before the first one


class ShellCommands:
    """The commands of one call."""

    __slots__ = ("_done", "_held", "_listed", "_over", "_place", "_said", "_string")

    def __init__(self, place: int) -> None:
        self._place = place  # of the item in the output
        self._done: list[bytes] = []  # as JSON strings
        self._held = ""  # what stands before a command
        self._listed = True
        self._over = False  # no further command flows
        self._said = bytearray()  # of the open command, as JSON without quotes
        self._string: JsonString | None = None  # None: no command is open

    def feed(self, arguments: str) -> list[CommandEvent]:
        """What this piece of the arguments tells."""
        events: list[CommandEvent] = []
        while arguments and not self._over:
            if self._string is None:
                arguments = self._between(arguments, events)
                continue
            text, arguments = self._string.feed(arguments)
            self._piece(text, events)
            if self._string.done:
                self._end(events)
                self._over = not self._listed
        return events

    def close(self, commands: Sequence[str]) -> list[CommandEvent] | None:
        """What is left to tell of the commands of the whole call; None if they are not those that were told."""
        told = len(self._done)
        if self._string is not None or self._done != [string(command) for command in commands[:told]]:
            return None
        events: list[CommandEvent] = []
        for command in commands[told:]:
            self._begin(events)
            self._piece(command, events)
            self._end(events)
        return events

    def _between(self, text: str, events: list[CommandEvent]) -> str:
        """Look for the next command; what follows its first quote."""
        text = self._held + text
        found = (_NEXT if self._done else _FIRST).match(text, 0, _LONGEST)
        if found is None:
            self._held = text
            self._over = len(text) >= _LONGEST
            return ""
        if found[0].endswith("]"):
            self._over = True
            return ""
        if not self._done:
            self._listed = found[1] is not None
        self._held = ""
        self._begin(events)
        return text[found.end() :]

    def _begin(self, events: list[CommandEvent]) -> None:
        self._string = JsonString()
        self._said.clear()
        events.append(self._event(b"added", b"command", b'""'))

    def _piece(self, text: str, events: list[CommandEvent]) -> None:
        if text:
            said = string(text)
            self._said += said[1:-1]
            events.append(self._event(b"delta", b"delta", said))

    def _end(self, events: list[CommandEvent]) -> None:
        command = b'"%b"' % bytes(self._said)
        events.append(self._event(b"done", b"command", command))
        self._done.append(command)
        self._string = None

    def _event(self, step: bytes, key: bytes, value: bytes) -> CommandEvent:
        place = b'"output_index":%d,"command_index":%d' % (self._place, len(self._done))
        return b"response.shell_call_command." + step, b'%b,"%b":%b' % (place, key, value)
