"""Treatment of request and tool fields, and the list of fields that are lost on the way to an upstream.

Each client protocol has a table of its fields (`request_fields`). Fields that contain options come from the option
table.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from attrs import frozen

from streamtool.core.conversation import Conversation
from streamtool.core.json_value import Json
from streamtool.protocols.options import (
    CONTAINERS,
    UNSUPPORTED,
    Condition,
    Option,
    Path,
    Spelling,
    client_paths,
)


class Decision(Enum):
    """Treatment of a field. The values are the wording used in the docs."""

    HONORED = "honored"
    PASSED = "forwarded within the protocol, otherwise dropped and logged"
    LOCAL = "forwarded within the protocol, meaningless in other protocols"
    NATIVE = "forwarded with native tools"
    DROPPED = "dropped"
    REJECTED = "rejected"


@frozen
class Field:
    """Treatment of one field."""

    decision: Decision
    note: str = ""
    """Additional detail for the docs."""

    def with_note(self, note: str) -> "Field":
        """Return a field with the same decision and this note."""
        return Field(self.decision, note)


HONORED: Final = Field(Decision.HONORED)
PASSED: Final = Field(Decision.PASSED)
LOCAL: Final = Field(Decision.LOCAL)
NATIVE: Final = Field(Decision.NATIVE)
DROPPED: Final = Field(Decision.DROPPED)
REJECTED: Final = Field(Decision.REJECTED)


@frozen
class _Kept:
    """Fields of a client protocol that can be passed to upstreams of one other protocol, and options that cannot."""

    top: frozenset[str]
    nested: tuple[tuple[str, frozenset[str]], ...]
    """Name and known members of the field that contains the options; () if the protocol has no such field."""
    lost: tuple[tuple[Option, Condition | None, Path], ...]
    """Options that the upstream does not support (None) or supports only under a condition, each with the path that
    clients use for it.
    """


class RequestFields:
    """Compiled table of a client protocol's fields. `rows` contains the fields that are not options."""

    __slots__ = ("_kept", "_protocol", "rows")

    def __init__(self, protocol: str, rows: Mapping[str, Field]) -> None:
        options = _option_fields(protocol)
        if twice := rows.keys() & options.keys():
            raise ValueError(f"{protocol}: {', '.join(sorted(twice))} is an option; remove its row from the fields")
        self.rows: Final[Mapping[str, Field]] = {**rows, **options}
        """All fields; the members of a field are named `field.member`."""
        self._protocol = protocol
        self._kept: dict[str, _Kept] = {}

    def dropped(self, conversation: Conversation, upstream: str, *, prompted: bool) -> list[str]:
        """Return the names of the body fields that cannot be expressed in the upstream's protocol.

        `prompted` means that the prompt asks the model for the options that can be expressed in words, so these options
        are not lost. A null field counts as absent.
        """
        kept = self._kept.get(upstream)
        if kept is None:
            kept = self._kept[upstream] = self._compile(upstream)
        raw = conversation.raw
        names = sorted(raw.keys() - kept.top)
        if names:
            names = [name for name in names if raw[name] is not None]
        for container, known in kept.nested:
            inner = raw.get(container)
            if isinstance(inner, dict):
                names += [f"{container}.{key}" for key in sorted(inner.keys() - known) if inner[key] is not None]
        for option, fits, path in kept.lost:
            if path[0] not in raw or (prompted and option.prompted) or _value_at(raw, path) is None:
                continue
            if fits is None or not fits(conversation.options):
                names.append(".".join(path))
        return names

    def _compile(self, upstream: str) -> _Kept:
        honored = [name for name, row in self.rows.items() if row.decision in (Decision.HONORED, Decision.LOCAL)]
        container = CONTAINERS.get(self._protocol)
        nested = [name.partition(".")[2] for name in honored if name.partition(".")[0] == container]
        sent = list(client_paths(self._protocol))
        arrives = {path for option, path in sent if option.applied or option.upstream(upstream) is not UNSUPPORTED}
        lost: list[tuple[Option, Condition | None, Path]] = []
        for option, path in sent:
            place = option.upstream(upstream)
            if path not in arrives:
                lost.append((option, None, path))
            elif isinstance(place, Spelling) and place.fits is not None:
                lost.append((option, place.fits, path))
        return _Kept(frozenset(honored), () if container is None else ((container, frozenset(nested)),), tuple(lost))


def _option_fields(protocol: str) -> dict[str, Field]:
    """Return the body fields that contain options."""
    notes: dict[str, list[str]] = {}
    container = CONTAINERS.get(protocol)
    for option, path in client_paths(protocol):
        place = option.client(protocol)
        first = place.path if isinstance(place, Spelling) else path
        name = ".".join(path) if path[0] == container else path[0]
        said = notes.setdefault(name, [])
        if ".".join(path) != name:
            said.append(f"`{'.'.join(path)}`")
        elif path != first:
            said.append(f"read if `{'.'.join(first)}` is absent")
        elif option.note:
            said.append(option.note)
    return {name: HONORED.with_note(", ".join(dict.fromkeys(said))) for name, said in notes.items()}


def _value_at(raw: Json, path: Path) -> Json:
    """Return the value at the path, or None if it is missing."""
    for key in path:
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw
