"""`streamtool sessions`: the conversations of `streamtool run` that are kept."""

import shutil

from streamtool.cli.columns import fitted, padded
from streamtool.cli.common import Screen, complain
from streamtool.cli.terminal.call_view import visible
from streamtool.cli.terminal.costs import counted
from streamtool.cli.terminal.sessions import all_sessions, sessions_folder

_NAME = 22
_TURNS = 9


def run() -> None:
    """Print a line for each session, the latest first: name, when it was last written to, turns, first task."""
    screen = Screen()
    found = all_sessions()
    columns = shutil.get_terminal_size().columns
    for kept in found:
        when = f"{kept.changed:%Y-%m-%d %H:%M}"
        before = (padded(kept.name, _NAME), "bold"), f"  {when}  {padded(counted(kept.turns, 'turn'), _TURNS)}  "
        room = max(columns - _NAME - len(before[1]), 20)
        screen.line(*before, fitted(visible(kept.task), room))
        if kept.broken:
            lines = ", ".join(map(str, kept.broken[:5]))
            complain(f"session {kept.name}: {counted(len(kept.broken), 'line')} cannot be read: {lines}")
    if not found:
        complain(f"there are no sessions in {sessions_folder()}")
