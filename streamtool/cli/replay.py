"""`streamtool parse --replay`: feed a recorded exchange to the parser again, piece by piece.

Each parser is created with the recorded options, so the events match the recording unless the parser has changed since
then. The summary at the end reports the first difference.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from attrs import define, field

from streamtool.cli.common import Screen, read_source
from streamtool.cli.parse import show
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import json_line
from streamtool.exchange.listener import ParserOptions
from streamtool.filters import NullParser, TextParser
from streamtool.observe.lines import VERSION, options_from_json
from streamtool.observe.parser_events import event_as_json

_BAD = (KeyError, TypeError, ValueError, AttributeError)


@define(eq=False)
class Replay:
    """Replay of one recording."""

    _name: str
    _as_json: bool = field(kw_only=True)
    _screen: Screen = field(factory=Screen, init=False)
    _parsers: dict[int, TextParser] = field(factory=dict, init=False)
    _options: ParserOptions | None = field(default=None, init=False)
    pieces: int = field(default=0, init=False)
    difference: dict[str, Any] | None = field(default=None, init=False)
    """The first difference: line number, recorded events, and events produced now."""
    cut: bool = field(default=False, init=False)
    """Whether the recording stops before the end of the exchange."""

    def run(self) -> None:
        """Replay the recording. Raises SettingsError if the file is not a valid recording."""
        number = 0
        for number, line in enumerate(self._lines(), 1):
            try:
                self._take(number, line)
            except _BAD:
                raise SettingsError(f"{self._name}, line {number}: not a line of a recording") from None
        if number == 0:
            raise SettingsError(f"{self._name} is not a recording of an exchange")

    def _lines(self) -> Iterator[Any]:
        *lines, rest = read_source(self._name).split(b"\n")
        self.cut = bool(rest)
        for i, line in enumerate(lines):
            try:
                yield json.loads(line)
            except ValueError:
                raise SettingsError(f"{self._name}, line {i + 1}: invalid JSON") from None

    def _take(self, number: int, line: Any) -> None:
        kind = line["type"]
        if number == 1 and (kind != "exchange" or line["trace"] != VERSION):
            raise SettingsError(f"{self._name} is not a recording that this version can read")
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
                self._say({"type": "quotation", "why": why}, f"a quotation, sent as text: {why}")
            case "cut":
                self.cut = True

    def _compare(self, number: int, line: Any, events: list[Any]) -> None:
        show(events, self._screen, as_json=self._as_json)
        now = [event_as_json(event) for event in events]
        if self.difference is None and now != line["events"]:
            self.difference = {"line": number, "recorded": line["events"], "now": now}

    def _say(self, known: dict[str, Any], sentence: str) -> None:
        if self._as_json:
            sys.stdout.write(json_line(known) + "\n")
        else:
            self._screen.line((sentence, "bold"))

    def conclude(self) -> bool:
        """Print whether the events match the recording, and return True if they do."""
        known = {"type": "replayed", "same": self.difference is None, "pieces": self.pieces, "cut": self.cut}
        cut = ", which is incomplete" if self.cut else ""
        if self.difference is None:
            self._say(known, f"the same events as in the recording{cut} ({self.pieces} pieces)")
            return True
        recorded, now = (json.dumps(self.difference[key], ensure_ascii=False) for key in ("recorded", "now"))
        at = self.difference["line"]
        self._say(
            {**known, "difference": self.difference},
            f"the events differ from the recording, first at line {at}:\n  recorded  {recorded}\n  now       {now}",
        )
        return False


def run(name: str, *, as_json: bool) -> int:
    """Replay the recording in the file `name` and print the events. Return the exit code: 1 if the events differ from
    the recorded ones.
    """
    replay = Replay(name, as_json=as_json)
    replay.run()
    return 0 if replay.conclude() else 1
