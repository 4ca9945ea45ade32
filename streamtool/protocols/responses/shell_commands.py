"""Streaming events for the commands of a shell call, sent while the model writes them.

The commands are part of a call's JSON arguments (`{"commands": ["ls", …]}`). They are streamed as soon as the
`commands` key has been read, provided that only numeric fields precede this key. Otherwise, the events are sent when
the arguments are complete. The events are `response.shell_call_command.added`, `.delta` and `.done` of the openai SDK
3.54; they identify the item only by its index.
"""

import re
from collections.abc import Sequence
from typing import Final

from streamtool.core.json_string import JsonStringDecoder
from streamtool.protocols.shared.stream import json_string

CommandEvent = tuple[bytes, bytes]
"""Name of an event, and its fields as JSON without braces. The fields common to all events of a stream are not
included.
"""

_FIRST: Final = re.compile(
    r'\s*\{\s*(?:"(?:timeout_ms|max_output_length)"\s*:\s*(?:null|\d+)\s*,\s*)*"commands"\s*:\s*(\[\s*)?"'
)
_NEXT: Final = re.compile(r'\s*(?:,\s*"|\])')
_LONGEST: Final = 256  # maximum number of characters between two commands, and before the first one


class ShellCommands:
    """State of the commands in one call."""

    __slots__ = ("_done", "_held", "_listed", "_over", "_place", "_said", "_string")

    def __init__(self, place: int) -> None:
        self._place = place  # index of the item in the output
        self._done: list[bytes] = []  # finished commands, as JSON strings
        self._held = ""  # characters received since the last command
        self._listed = True
        self._over = False  # whether streaming has ended, because the list has ended or is irregular
        self._said = bytearray()  # the open command, as a JSON string without quotes
        self._string: JsonStringDecoder | None = None  # None if no command is open

    def feed(self, arguments: str) -> list[CommandEvent]:
        """Return the events for this piece of the arguments."""
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
        """Return the remaining events, given the complete call's commands, or None if the commands already sent differ
        from these.
        """
        told = len(self._done)
        if self._string is not None or self._done != [json_string(command) for command in commands[:told]]:
            return None
        events: list[CommandEvent] = []
        for command in commands[told:]:
            self._begin(events)
            self._piece(command, events)
            self._end(events)
        return events

    def _between(self, text: str, events: list[CommandEvent]) -> str:
        """Search for the next command, and return the text after its opening quote."""
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
        self._string = JsonStringDecoder()
        self._said.clear()
        events.append(self._event(b"added", b"command", b'""'))

    def _piece(self, text: str, events: list[CommandEvent]) -> None:
        if text:
            said = json_string(text)
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
