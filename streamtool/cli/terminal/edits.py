"""Calls that edit a file, recognized by the shape of their arguments, and the diff between their result and the file on
disk.

Tools that edit files have many names, but their arguments have only a few shapes. An edit is a path with old text and
its replacement (or a list of such pairs), a path with the complete content, or text that is itself a diff. The tables
below list the keys used by existing tools. The diff shows the change that the arguments describe, which is not
necessarily what the tool does.

Sources: the schemas of Claude Code's and Anthropic's text editor, aider, Codex (`apply_patch`), Cline, Gemini CLI, Qwen
Code, opencode, and the MCP reference server for file systems.
"""

import difflib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from attrs import frozen

from streamtool.core.json_value import Json

PATHS = ("path", "file_path", "filepath", "file", "filename", "file_name", "filePath", "target_file", "absolute_path")
PAIRS = (
    ("old_string", "new_string"),
    ("old_str", "new_str"),
    ("old_text", "new_text"),
    ("oldText", "newText"),
    ("oldString", "newString"),
    ("old", "new"),
    ("search", "replace"),
    ("find", "replace"),
)
LISTS = ("edits", "changes", "replacements")
CONTENTS = ("content", "contents", "file_text", "new_content", "file_content")
PARTIAL = ("append", "offset", "insert_line", "line", "start_line", "end_line", "mode")
"""Keys that indicate that the content is only part of the file."""

_READ = 1024 * 1024
"""Maximum size of a file to compare, in bytes."""
_COMPARED = 2000
"""Maximum number of lines on each side for a line-by-line comparison. If there are more, one side is shown as removed
and the other as added.
"""
_AROUND = 3
"""Number of context lines around each change in a diff."""


@frozen
class Edit:
    """An edit to one file, as described by a call's arguments."""

    path: str
    """Path of the file; empty if the diff names it."""
    lines: tuple[str, ...]
    """Lines of a unified diff, without newlines."""
    keys: frozenset[str]
    """Names of the arguments whose values the diff shows."""
    note: str = ""
    """Problem to show with the diff: the file, or the text to replace, does not exist."""


def edit_of(arguments: Mapping[str, Json]) -> Edit | None:
    """Return the edit that these arguments describe, or None if they do not describe one. Reads the file to edit."""
    for key, value in arguments.items():
        if isinstance(value, str) and is_diff(value):
            return Edit("", tuple(value.splitlines()), frozenset([key]))
    named = next((key for key in PATHS if isinstance(arguments.get(key), str) and arguments[key]), None)
    if named is None:
        return None
    path = arguments[named]
    found = _pairs(arguments)
    if found is not None:
        return _replacement_edit(path, *found)
    whole = next((key for key in CONTENTS if isinstance(arguments.get(key), str)), None)
    if whole is None or any(key in arguments for key in PARTIAL):
        return None
    before, problem = _read(path)
    return Edit(path, tuple(_diff(path, before, arguments[whole])), frozenset([whole]), problem)


def is_diff(text: str) -> bool:
    """Return whether the text is a unified diff or a Codex patch."""
    if "\n" not in text:
        return False
    if text.lstrip().startswith("*** Begin Patch"):
        return True
    lines = text.splitlines()
    return any(first.startswith("--- ") and second.startswith("+++ ") for first, second in pairwise(lines))


def _pairs(arguments: Mapping[str, Json]) -> tuple[list[tuple[str, str]], frozenset[str]] | None:
    """Return the pairs of old text and replacement, and the names of the arguments that contain them. Return None if
    the arguments contain no pairs.
    """
    for old, new in PAIRS:
        if isinstance(arguments.get(old), str) and isinstance(arguments.get(new), str):
            return [(arguments[old], arguments[new])], frozenset([old, new])
    for key in LISTS:
        items = arguments.get(key)
        if not isinstance(items, list) or not items:
            continue
        pairs = [_pairs(item) if isinstance(item, dict) else None for item in items]
        if all(pairs):
            return [pair for found in pairs if found for pair in found[0]], frozenset([key])
    return None


def _replacement_edit(path: str, pairs: Sequence[tuple[str, str]], keys: frozenset[str]) -> Edit:
    before, problem = _read(path)
    after = before
    for old, new in pairs:
        if not old or old not in after:
            lines = [
                line for gone, come in pairs for line in (*_prefixed_lines("-", gone), *_prefixed_lines("+", come))
            ]
            return Edit(path, tuple(lines), keys, problem or "the text to replace is not in the file")
        after = after.replace(old, new, 1)
    return Edit(path, tuple(_diff(path, before, after)), keys, problem)


def _read(path: str) -> tuple[str, str]:
    """Return the text of a regular file and "", or "" and the reason why the file cannot be read."""
    try:
        # reading a pipe, a device or a socket may never end, or have side effects
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  the path may be anything
            return "", "not a regular file"
        with Path(path).open("rb") as file:
            data = file.read(_READ + 1)
    except FileNotFoundError:
        return "", "no such file"
    except (OSError, ValueError) as error:
        return "", f"cannot read the file: {getattr(error, 'strerror', None) or error}"
    if len(data) > _READ:
        return "", "the file is too large to compare"
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return "", "the file is not UTF-8"


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    """Yield the lines of a unified diff. Equal lines at the beginning and at the end are not compared."""
    old, new = before.splitlines(), after.splitlines()
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    if begin == len(old) == len(new):
        return
    yield f"--- {path}"
    yield f"+++ {path}"
    first, last = max(0, begin - _AROUND), max(0, end - _AROUND)
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(old), len(new)) > _COMPARED:
        yield f"@@ -{first + 1},{len(old)} +{first + 1},{len(new)} @@"
        yield from (f"-{line}" for line in old)
        yield from (f"+{line}" for line in new)
        return
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(_AROUND):
        yield _place(group, first)
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[i1:i2])
            else:
                yield from (f"-{line}" for line in old[i1:i2])
                yield from (f"+{line}" for line in new[j1:j2])


def _place(group: Sequence[tuple[str, int, int, int, int]], first: int) -> str:
    """Return the `@@` line for a group of changes. As in the output of diff, an empty side starts one line earlier."""
    i1, i2, j1, j2 = group[0][1], group[-1][2], group[0][3], group[-1][4]
    old, new = (first + begin + (1 if end > begin else 0) for begin, end in ((i1, i2), (j1, j2)))
    return f"@@ -{old},{i2 - i1} +{new},{j2 - j1} @@"


def _prefixed_lines(mark: str, text: str) -> list[str]:
    return [f"{mark}{line}" for line in text.splitlines()]
