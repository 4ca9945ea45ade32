"""The items of a streamed Responses reply (R5–R8): how they begin, grow and end.

One item is open at a time, with one part or value in it. The deltas, the final event and the finished item must agree.
"""

from typing import Any, Final

from attrs import Factory, define
from support.validators.framing import UNREPAIRABLE, Problems, SseFrame, check_object
from support.validators.responses_complete import (
    CALLS,
    PARTS,
    VALUES,
    check_item,
    check_logprobs,
    check_part,
    check_status,
    text_key,
)

Json = Any  # a decoded JSON value

_INDEX: Final = {"content": "content_index", "summary": "summary_index"}
_SAME: Final = ("type", "id", "call_id", "name", "namespace", "role")


@define
class _Part:
    """An open part."""

    key: str
    """The list that contains it, `content` or `summary`."""
    kind: Json
    pieces: list[str] = Factory(list)
    text_done: bool = False


@define
class StreamedItem:
    """An item, as far as it has been received."""

    added: dict[str, Json]
    known: bool
    part: _Part | None = None
    lists: dict[str, list[Json]] = Factory(lambda: {"content": [], "summary": []})
    """The finished parts."""
    pieces: list[str] = Factory(list)
    """The fragments of the arguments."""
    value_done: bool = False
    commands: list[list[str]] = Factory(list)
    """The fragments of each shell command."""
    commanding: bool = False
    """The last command is unfinished."""
    final: dict[str, Json] | None = None

    @property
    def kind(self) -> str:
        return str(self.added.get("type"))

    @property
    def raw(self) -> bool:
        """Whether it is a call whose arguments are not JSON; an incomplete one is never done."""
        return self.kind in CALLS and self.kind != "function_call"

    @property
    def incomplete(self) -> bool:
        return self.final is None or self.final.get("status") == "incomplete"


class StreamedItems:
    """The validator of the items in one stream."""

    __slots__ = ("_items", "_problems")

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._items: list[StreamedItem] = []

    def __len__(self) -> int:
        return len(self._items)

    def finals(self) -> list[Json]:
        """Return the finished items as their final events reported them."""
        return [item.final for item in self._items if item.final is not None]

    def begun(self) -> list[dict[str, Json]]:
        """Return the items of known types, as they were added."""
        return [item.added for item in self._items if item.known]

    def added(self, frame: SseFrame, event: dict[str, Json]) -> None:
        problems = self._problems
        if self._items and self._items[-1].final is None and not self._items[-1].raw:
            problems.must("R6", f"an item begins while one is open: {frame}")
        index: Json = event.get("output_index")
        item: Json = event.get("item")
        if index != len(self._items) or isinstance(index, bool):
            problems.must("R5", f"output_index {index!r} instead of {len(self._items)}: {frame}")
        where = f"item {index!r}"
        known = check_item(item, where, "R5", problems)
        self._items.append(StreamedItem(item if isinstance(item, dict) else {}, known))
        if not known:
            return
        kind, status = item["type"], item.get("status")
        if status != "in_progress" and (status is not None or kind in ("message", "function_call")):
            problems.must("R5", f"{where} begins with status {status!r}")
        for key in (*PARTS[kind], VALUES.get(kind)):
            if key is not None and item.get(key):
                problems.must("R5", f"{where} does not begin empty: {frame}")

    def _open(self, frame: SseFrame, event: dict[str, Json], *, named: bool = True) -> StreamedItem | None:
        """Return the open item if the event belongs to it; `named` events contain its id."""
        problems = self._problems
        if not self._items or self._items[-1].final is not None:
            problems.must("R6", f"no item is open: {frame}")
            return None
        item = self._items[-1]
        if event.get("output_index") != len(self._items) - 1:
            problems.must("R6", f"output_index {event.get('output_index')!r} is not the open item: {frame}")
            return None
        if named and event.get("item_id") != item.added.get("id"):
            problems.must("R6", f"item_id {event.get('item_id')!r} is not the open item: {frame}")
        return item if item.known else None

    def ended(self, frame: SseFrame, event: dict[str, Json]) -> None:
        problems = self._problems
        item, final = self._open(frame, event, named=False), event.get("item")
        if not isinstance(final, dict):
            problems.must("R6", f"the item is not an object: {frame}")
            final = {}
        if item is None:
            if self._items and event.get("output_index") == len(self._items) - 1 and not self._items[-1].known:
                self._items[-1].final = final
            return
        item.final = final
        where = f"item {len(self._items) - 1}"
        for key in _SAME:
            if final.get(key) != item.added.get(key):
                problems.must("R6", f"`{key}` of {where} was {item.added.get(key)!r} and ends as {final.get(key)!r}")
        check_status(final, where, "R7", problems)
        if item.part is not None:
            problems.must("R7", f"{where} ends while a part is open")
        for key in PARTS[item.kind]:
            if (final.get(key) or []) != item.lists[key]:
                problems.must("R7", f"`{key}` of {where} is not what was streamed")
            if not isinstance(final.get(key), list) and item.added.get(key) is not None:
                problems.must("R7", f"`{key}` of {where} is not a list")
        if item.kind == "shell_call":
            self._commanded(item, final, where)
        if item.kind in VALUES:
            if final.get(VALUES[item.kind]) != "".join(item.pieces):
                problems.must("R7", f"`{VALUES[item.kind]}` of {where} is not what was streamed")
            if item.value_done and item.incomplete:
                problems.must("R7", f"{where} is incomplete, but its arguments were reported as done")
            elif not item.value_done and not item.incomplete:
                problems.must("R7", f"{where} is complete, but its arguments were not reported as done")

    # --- parts and arguments

    def part(self, frame: SseFrame, event: dict[str, Json], key: str, step: str) -> None:
        problems = self._problems
        item = self._open(frame, event)
        if item is None:
            return
        given: Json = event.get("part")
        kinds = PARTS[item.kind].get(key, ())
        where = f"item {len(self._items) - 1}"
        if event.get(_INDEX[key]) != len(item.lists[key]):
            problems.must("R7", f"{_INDEX[key]} {event.get(_INDEX[key])!r} instead of {len(item.lists[key])}: {frame}")
        check_part(given, kinds, where, "R7", problems)
        if not isinstance(given, dict):
            return
        text = given.get(text_key(given.get("type")))
        if step == "added":
            if item.part is not None:
                problems.must("R7", f"a part begins while one is open: {frame}")
            item.part = _Part(key, given.get("type"))
            if text != "" or given.get("annotations") or given.get("logprobs"):
                problems.must("R7", f"a part does not begin empty: {frame}")
            return
        part, item.part = item.part, None
        if part is None or part.key != key or part.kind != given.get("type"):
            problems.must("R7", f"no such part is open: {frame}")
        else:
            if not part.text_done:
                problems.must("R7", f"a part ends before its text is done: {frame}")
            if text != "".join(part.pieces):
                problems.must("R7", f"the part is not what was streamed: {frame}")
        item.lists[key].append(given)

    def text(self, frame: SseFrame, event: dict[str, Json], kind: str, step: str) -> None:
        problems = self._problems
        item = self._open(frame, event)
        if item is None:
            return
        part = item.part
        if part is None or part.kind != kind:
            problems.must("R7", f"no part of type {kind} is open: {frame}")
            return
        index = _INDEX[part.key]
        if event.get(index) != len(item.lists[part.key]):
            problems.must("R7", f"{index} {event.get(index)!r} is not the open part: {frame}")
        if kind == "output_text":
            check_logprobs(event, str(frame), problems)
        if part.text_done:
            problems.must("R7", f"{frame} after the text's end")
        part.text_done |= step == "done"
        self._grow(frame, event, part.pieces, text_key(kind), step)

    def value(self, frame: SseFrame, event: dict[str, Json], kind: str, step: str) -> None:
        problems = self._problems
        item = self._open(frame, event)
        if item is None:
            return
        if item.kind != kind:
            problems.must("R7", f"the open item is a {item.kind}: {frame}")
            return
        if item.value_done:
            problems.must("R7", f"{frame} after the arguments' end")
        item.value_done |= step == "done"
        self._grow(frame, event, item.pieces, VALUES[kind], step)

    def _grow(self, frame: SseFrame, event: dict[str, Json], pieces: list[str], key: str, step: str) -> None:
        """Append a delta to the others, or compare them with the complete text."""
        if step == "done":
            if event.get(key) != "".join(pieces):
                self._problems.must("R7", f"`{key}` is not what was streamed: {frame}")
        elif not isinstance(event.get("delta"), str):
            self._problems.must("R7", f"the delta is not a string: {frame}")
        else:
            pieces.append(event["delta"])

    # --- the commands of a shell

    def command(self, frame: SseFrame, event: dict[str, Json], step: str) -> None:
        problems = self._problems
        item = self._open(frame, event, named=False)
        if item is None:
            return
        if item.kind != "shell_call":
            problems.must("R7", f"the open item is a {item.kind}: {frame}")
            return
        if item.commanding == (step == "added"):
            problems.must("R7", f"{'a' if item.commanding else 'no'} command is open: {frame}")
            return
        if step == "added":
            item.commands.append([])
        index: Json = event.get("command_index")
        if index != len(item.commands) - 1 or isinstance(index, bool):
            problems.must("R7", f"command_index {index!r} instead of {len(item.commands) - 1}: {frame}")
        if step == "added" and event.get("command") != "":
            problems.must("R7", f"a command does not begin empty: {frame}")
        if step != "added":
            self._grow(frame, event, item.commands[-1], "command", step)
        item.commanding = step != "done"

    def _commanded(self, item: StreamedItem, final: dict[str, Json], where: str) -> None:
        """Check the commands of a finished item. An incomplete one may have none, so that a truncated command never
        runs.
        """
        problems = self._problems
        action: Json = final.get("action")
        commands = action.get("commands") if isinstance(action, dict) else None
        if commands != ["".join(pieces) for pieces in item.commands] and not (item.incomplete and commands == []):
            problems.must("R7", f"the commands of {where} are not what was streamed")
        if item.commanding and not item.incomplete:
            problems.must("R7", f"{where} is complete, but its last command was not reported as done")

    # --- the end

    def end(self, terminal: str | None, *, broken: bool) -> None:
        """Check all items at the end of the stream. `terminal` is its final status; if `broken`, the last item may be
        open.
        """
        problems = self._problems
        for position, item in enumerate(self._items):
            last = position == len(self._items) - 1
            if item.final is None and not ((broken and last) or item.raw):
                problems.must("R6", f"item {position} is not done")
            unreadable = "".join(item.pieces).endswith(UNREPAIRABLE)
            if item.final is not None and item.incomplete and terminal == "completed" and not unreadable:
                problems.must("R9", f"item {position} is incomplete in a completed response")
            if item.kind == "function_call":
                text = "".join(item.pieces)
                check_object(text, f"the arguments of item {position}", "R8", problems, cut=item.incomplete)
