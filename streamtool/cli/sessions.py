"""`streamtool sessions`: list the conversations saved by `streamtool run`."""

import shutil

from streamtool.cli.columns import fit, pad
from streamtool.cli.common import Screen, print_error
from streamtool.cli.terminal.call_view import escape_invisible
from streamtool.cli.terminal.costs import pluralize
from streamtool.cli.terminal.sessions import all_sessions, sessions_folder

_NAME = 22
_TURNS = 9


def run() -> None:
    """Print a line for each session, latest first: name, time of the last change, number of turns and first task."""
    screen = Screen()
    found = all_sessions()
    columns = shutil.get_terminal_size().columns
    for kept in found:
        when = f"{kept.changed:%Y-%m-%d %H:%M}"
        before = (pad(kept.name, _NAME), "bold"), f"  {when}  {pad(pluralize(kept.turns, 'turn'), _TURNS)}  "
        room = max(columns - _NAME - len(before[1]), 20)
        screen.line(*before, fit(escape_invisible(kept.task), room))
        if kept.broken:
            lines = ", ".join(map(str, kept.broken[:5]))
            print_error(f"session {kept.name}: cannot read {pluralize(len(kept.broken), 'line')}: {lines}")
    if not found:
        print_error(f"no sessions found in {sessions_folder()}")
