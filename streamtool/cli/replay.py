"""`streamtool parse --replay`: a recorded exchange goes through the parser again, piece by piece as it came.

The parsers are made with what they were made with, so the events are the same as those in the recording, unless the
parser has changed since. That is said at the end, with the first difference.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from streamtool.cli.common import Screen, read_source
from streamtool.cli.parse import show
from streamtool.errors import SettingsError
from streamtool.exchange import ParserOptions
from streamtool.observe.lines import VERSION, options_from_json
from streamtool.observe.parser_events import event_as_json
from streamtool.policy import NullParser, TextParser

_BAD = (KeyError, TypeError, ValueError, AttributeError)


class Replay:
    """One recording while it is replayed."""

    __slots__ = ("_as_json", "_name", "_options", "_parsers", "_screen", "cut", "difference", "pieces")

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._as_json = as_json
        self._screen = Screen()
        self._parsers: dict[int, TextParser] = {}
        self._options: ParserOptions | None = None
        self.pieces = 0
        self.difference: dict[str, Any] | None = None
        """The first one: the line, what was recorded, and what came out now."""
        self.cut = False
        """The recording does not reach to the end of the exchange."""

    def run(self) -> None:
        """Replay it. Raises SettingsError for what is no recording."""
        number = 0
        for number, line in enumerate(self._lines(), 1):
            try:
                self._take(number, line)
            except _BAD:
                raise SettingsError(f"{self._name}, line {number}: this is no line of a recording") from None
        if number == 0:
            raise SettingsError(f"{self._name} is no recording of an exchange")

    def _lines(self) -> Iterator[Any]:
        *lines, rest = read_source(self._name).split(b"\n")
        self.cut = bool(rest)
        for i, line in enumerate(lines):
            try:
                yield json.loads(line)
            except ValueError:
                raise SettingsError(f"{self._name}, line {i + 1}: this is no JSON") from None

    def _take(self, number: int, line: Any) -> None:
        kind = line["type"]
        if number == 1 and (kind != "exchange" or line["trace"] != VERSION):
            raise SettingsError(f"{self._name} is no recording of an exchange that this version can read")
        match kind:
            case "attempt":
                self._say({"type": "attempt", "attempt": line["attempt"]}, f"attempt {line['attempt']}")
            case "parser":
                if "made_with" in line:
                    made_with = line["made_with"]
                    self._options = None if made_with is None else options_from_json(made_with)
                self._parsers[line["parser"]] = NullParser() if self._options is None else self._options.parser()
            case "text":
                self._compare(number, line, self._parsers[line["parser"]].feed(line["text"]))
                self.pieces += 1
            case "close":
                self._compare(number, line, self._parsers[line["parser"]].close(line["reason"]))
            case "quotation":
                why = str(line["why"])
                self._say({"type": "quotation", "why": why}, f"a quotation, and text: {why}")
            case "cut":
                self.cut = True

    def _compare(self, number: int, line: Any, events: list[Any]) -> None:
        show(events, self._screen, as_json=self._as_json)
        now = [event_as_json(event) for event in events]
        if self.difference is None and now != line["events"]:
            self.difference = {"line": number, "recorded": line["events"], "now": now}

    def _say(self, known: dict[str, Any], sentence: str) -> None:
        if self._as_json:
            sys.stdout.write(json.dumps(known, ensure_ascii=False) + "\n")
        else:
            self._screen.line((sentence, "bold"))

    def conclude(self) -> bool:
        """Say whether the events are those of the recording."""
        known = {"type": "replayed", "same": self.difference is None, "pieces": self.pieces, "cut": self.cut}
        cut = ", as far as it goes" if self.cut else ""
        if self.difference is None:
            self._say(known, f"the same events as in the recording{cut} ({self.pieces} pieces)")
            return True
        recorded, now = (json.dumps(self.difference[key], ensure_ascii=False) for key in ("recorded", "now"))
        at = self.difference["line"]
        self._say(
            {**known, "difference": self.difference},
            f"other events than in the recording, first at its line {at}:\n  recorded  {recorded}\n  now       {now}",
        )
        return False


def run(name: str, *, as_json: bool) -> int:
    """Replay the recording in the file `name`, print the events, and return the exit code: 1 if they are others."""
    replay = Replay(name, as_json=as_json)
    replay.run()
    return 0 if replay.conclude() else 1
