"""Arguments that are written outside the object that they belong to, and are nested in it again.

Theory of operation. A member that the schema declares only in one object of the arguments is buffered, because members
of that object may be apart from each other, or the object may still follow. At the end of the arguments, the buffered
members are emitted as that object if it is not given otherwise, has all required members, and every value has an
allowed type. If not, they are emitted as they are written.
"""

from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Final

from statemachine.json.state import JsonState
from statemachine.json.values import load
from statemachine.schema import Node, json_types_of
from statemachine.stream.buffer import Mismatch
from statemachine.stream.reader import Reader

NO_HOMES: Final[Mapping[str, str]] = {}
MAX_KEPT = 64 * 1024
"""Maximum length of all buffered values of a call together, as JSON."""


class Nesting:
    """Target that buffers the members of one call that belong to another object."""

    __slots__ = ("_apart", "_given", "_homes", "_kept", "_key", "_room", "_root", "_target")

    def __init__(self, root: Node, given: set[str]) -> None:
        self._root = root
        self._homes: Mapping[str, str] | None = None
        self._given = given
        """Arguments emitted so far."""
        self._kept: dict[str, tuple[str, list[str]]] = {}
        """The object that a buffered member belongs to, and the pieces of its value, by key."""
        self._key: str | None = None
        """Key of the member that is being read."""
        self._room = MAX_KEPT
        self._apart = False
        """Whether nothing has to be emitted between the arguments so far and the next member."""
        self._target: list[str] | bool | object = False

    def member(self, key: str) -> tuple[str, Node | None] | None:
        """Return the object that an undeclared member belongs to, and the schema of its value, or None unless there is
        exactly one object.
        """
        home = None if key in self._kept else self.homes.get(key)
        if home is None or home in self._given:
            return None
        node = self._root.member(home)
        return home, None if node is None else node.member(key)

    @property
    def homes(self) -> Mapping[str, str]:
        """The object that a member belongs to, by key."""
        if self._homes is None:
            self._homes = self._root.homes() or NO_HOMES
        return self._homes

    def may_begin(self, begun: str) -> bool:
        """Return whether a key that begins like this may belong to an object."""
        return any(key.startswith(begun) for key in self.homes)

    def begin(self, reader: Reader, key: str, home: str, *, apart: bool = False) -> None:
        """Buffer the value that follows. `apart` means that the separator before its key has been emitted."""
        self._kept[key] = home, []
        self._key, self._apart = key, apart
        self._target, reader.target = reader.target, self

    def append(self, piece: str) -> None:
        """Buffer a piece of strict JSON; drop a value that is too long."""
        self._room -= len(piece)
        if self._room >= 0 and self._key is not None:
            self._kept[self._key][1].append(piece)

    def pause(self, reader: Reader, *, comma: bool = False) -> None:
        """Restore the previous target after a value, and drop the `comma` that has been read after it.

        Raises:
            Mismatch: the buffered values are too long.
        """
        if self._key is None:
            return
        reader.target = self._target  # type: ignore[assignment]  # it was the target
        pieces = self._kept[self._key][1]
        self._key = None
        if self._room < 0:
            pieces.clear()
            raise Mismatch
        if comma:
            pieces.pop()

    def resume(self) -> None:
        """Note that the key of another argument is emitted."""
        self._apart = False

    def end(self, reader: Reader, state: JsonState, *, cut: bool = False) -> None:
        """Emit the buffered members at the end of the arguments, or where they are `cut` off.

        Raises:
            Mismatch: the buffered values are too long, or the arguments exceed their limit.
        """
        self.pause(reader)
        kept, self._kept = self._kept, {}
        objects: dict[str, dict[str, str]] = {}
        for key, (home, pieces) in kept.items():
            if pieces:
                objects.setdefault(home, {})[key] = "".join(pieces).strip()
        for home, members in objects.items():
            whole = not cut and self.has_required(home, members) and self._allows(home, members)
            if whole:
                state.add_repair("nested_arguments")
                self._emit(reader, home, "{" + ", ".join(map(pair, members, members.values())) + "}")
            for key, value in members.items() if not whole else ():
                self._emit(reader, key, value)

    def has_required(self, home: str, members: Mapping[str, str]) -> bool:
        """Return whether an object that has not been given has all required members."""
        node = self._root.member(home)
        return home not in self._given and node is not None and node.required <= members.keys()

    def _allows(self, home: str, members: Mapping[str, str]) -> bool:
        """Return whether the values of these members have types that an object allows."""
        node = self._root.member(home)
        inner = {} if node is None else {key: node.member(key) for key in members}
        return all(one is None or one.types & {*json_types_of(load(members[key]))} for key, one in inner.items())

    def _emit(self, reader: Reader, key: str, value: str) -> None:
        reader.emit_arguments((", " if self._given and not self._apart else "") + pair(key, value))
        self._apart = False
        self._given.add(key)


def pair(key: str, value: str) -> str:
    """Return the JSON of a member."""
    return f"{encode_basestring(key)}: {value}"
