"""Levels of nested keys in a call that is being read, and the slot of the next value."""

from attrs import define, field, frozen

from statemachine import schema
from statemachine.bodies.repeated import PossibleFirstItem


@define
class Level:
    """Container of keys: the call itself, or a value made of elements."""

    node: schema.Node | None
    """Schema of the container."""
    names: tuple[str, ...] = ()
    """Declared parameters of the call."""
    given: set[str] = field(factory=set)
    """Keys given so far."""
    key: str = ""
    """Key whose value is this container."""
    array: bool | None = False
    """Whether the elements are items of an array, whatever their keys; None until the first element."""
    end_implied: bool = False
    """Whether the previous value had no closer, so that its end was implied by the text after it."""
    foreign: bool = False
    """Whether the current key is written as in another format."""
    sound: bool = True
    """False once a value may have swallowed markup of its call."""
    first: PossibleFirstItem | None = None
    """Previous value, while it may still become the first item of a list."""

    def member(self, key: str) -> schema.Node | None:
        """Return the schema for the value of a key."""
        if self.node is None:
            return None
        return self.node.items() if self.array else self.node.member(key)

    def accepts_key(self, key: str, *, closed: bool) -> bool:
        """Return whether a key may come next.

        If the previous value was `closed`, any key may come next; otherwise, the key must be declared and must not have
        been given yet.
        """
        if closed or not key:
            return bool(key)
        if self.key:
            declared = not self.array and self.node is not None and self.node.deep and key not in self.given
            return declared and self.member(key) is not None
        return key in self.names and key not in self.given

    def near(self, key: str) -> str | None:
        """Return the declared key that an undeclared one refers to, if it can be only one; otherwise, return None."""
        return None if self.node is None or self.array else self.node.near(key, self.given)

    def is_undeclared(self, key: str) -> bool:
        """Return whether parameters are declared, but not this one."""
        return bool(self.names) and key not in self.names and self.member(key) is None


@frozen
class Slot:
    """Key of the next value, and the types that it may have."""

    key: str
    types: frozenset[str]
    node: schema.Node | None
    """Schema of the value."""
