"""What the parser holds back of a call, and for how long, in characters: read off the table of formats.

A call that a model writes as the format has it is held at four places. While what has come may be the beginning of a
marker; from there until the call starts (its name is known, and what marks the arguments has come); inside, where a
value may end; and where its closers may come. The numbers are upper bounds for a call as `write` writes it, they depend
on the lengths of its name and of its keys, and `tests/test_held.py` holds the parser to them.
"""

import json
from collections.abc import Callable, Iterator

from attrs import frozen

from statemachine import Call, Format, write
from statemachine.formats.format import Envelope, Expression, Parameters
from statemachine.formats.markers import spelled
from statemachine.waiting import openers

ESCAPE = 5
"""Half an escape of JSON: `\\u00e`."""
LONG_ESCAPE = 9
"""Half an escape of Python: `\\U0001F60`."""
VALUES = ('"WWW"', "3", "true", "null", "[1]", '{"a": 1}')
"""A value of each kind: some formats say its type."""


@frozen
class Holds:
    """How many characters of a call of this name, with keys no longer than this one, may be held."""

    marker: int
    """While they may be the beginning of a marker that stands in the text."""
    opening: int
    """Until the call starts, from the first character of its first marker on."""
    inside: int
    """Between its start and its end."""
    closing: int
    """After its end, while a closer may come."""
    values: bool
    """Values that need not be strings are held to their end, besides."""


def holds(form: Format, name: str, key: str) -> Holds:
    """The bounds for a call of a tool with this name, whose keys are no longer than this one."""
    text = HeldText(form, "Q" * len(name), "Z" * len(key))
    return Holds(
        marker=max((len(marker) - 1 for marker in openers(form)), default=0),
        opening=max(text.opening(), text.empty()),
        inside=text.inside(),
        closing=max((len(closer) for closer in text.closers()), default=0) + 1,
        values=isinstance(form.variants[0].body, Parameters),
    )


class HeldText:
    """A format as it is written, with a name and a key whose letters occur nowhere else."""

    __slots__ = ("form", "key", "name", "variant")

    def __init__(self, form: Format, name: str, key: str) -> None:
        self.form = form
        self.variant = form.variants[0]
        self.name = name
        self.key = key

    def written(self, arguments: str) -> str:
        """A call with these arguments."""
        return write([Call(self.name, arguments)], self.form.name)

    def opening(self) -> int:
        """Where a call with arguments starts."""
        text = self.written(f'{{"{self.key}": "VVV"}}')
        body = self.variant.body
        match body:
            case Envelope() if self.form.openers or self.form.fence or body.thought:
                return self.after_name(text) + 1
            case Expression() if self.variant.name_rule is None:
                return self.after_name(text) + 1
            case Parameters(close=close) if "{key}" in close:  # such a tag is a key once a value follows it
                return text.index("VVV") + 1
            case _:  # where the first key stands, behind the brace or the marker that opens it
                return text.index(self.key)

    def empty(self) -> int:
        """Where a call without arguments starts: at its closer, where nothing else says that they have begun."""
        if not isinstance(self.variant.body, Parameters):
            return 0
        text, close = self.written("{}"), self.closer()
        return text.rindex(close) + len(close)

    def inside(self) -> int:
        """What may be held of the arguments."""
        match self.variant.body:
            case Parameters():
                return max(self.between(), self.last())
            case Expression(assign=assign, quote=quote, flag=flag):
                return max(len(self.key) + len(flag) + len(assign), len(quote), LONG_ESCAPE)
            case _:
                return max(ESCAPE, self.string_end())

    def string_end(self) -> int:
        """From the quote that ends a string of JSON until it is known that it does: a key, or the brackets."""
        text = self.written(f'{{"{self.key}": "VVV", "{self.key}2": "WWW"}}')
        key = text.index(self.key + "2") + len(self.key + '2"') - text.index("VVV") - len("VVV")
        rest = text[text.index("WWW") + 3 :]
        return max(key - 1, len(rest) - len(rest.lstrip('"}] \n')))

    def between(self) -> int:
        """From the end of a value to the beginning of the next one."""
        other = "X" * len(self.key)

        def members(value: str) -> str:
            return self.written(f'{{"{self.key}": "VVV", "{other}": {value}}}')

        text = members(VALUES[0])
        plain = text.index("WWW") - text.index("VVV") - 3
        return plain + max(len(members(value)) - len(value.strip('"')) - len(text) + 3 for value in VALUES)

    def last(self) -> int:
        """From the end of the last value to the end of the call."""
        text, close = self.written(f'{{"{self.key}": "VVV"}}'), self.closer()
        return text.index(close, text.index("VVV")) + len(close) - text.index("VVV") - 3

    def closers(self) -> Iterator[str]:
        """What may close a call."""
        yield self.closer()
        yield from (spelled(close) for _, close in self.form.wrappers)
        yield from ("```" for _ in self.form.fence[:1])

    def closer(self) -> str:
        """The call's own closer."""
        return spelled(self.form.close.replace("{tool}", self.name))

    def after_name(self, text: str) -> int:
        """Where the name ends."""
        return text.rindex(self.name) + len(self.name)


def formula(measure: Callable[[str, str], int]) -> str:
    """A bound as people read it: `22 + name`, `14 + 2 × key + name`."""
    base = measure("n", "k")
    by_key, by_name = measure("n", "kk") - base, measure("nn", "k") - base
    parts = [str(base - by_key - by_name)] if base > by_key + by_name or not by_key + by_name else []
    for times, word in ((by_key, "key"), (by_name, "name")):
        if times:
            parts.append(word if times == 1 else f"{times} × {word}")
    return " + ".join(parts)


def example(form: Format, name: str, key: str) -> str:
    """Two calls whose arguments are of every kind, as the format writes them."""
    members = ", ".join(f'"{key[:-1]}{number}": {value}' for number, value in enumerate(VALUES))
    text = f'"{key}": {json.dumps("a <b> & {c} [d]")}'
    return write([Call(name, f"{{{text}, {members}}}"), Call(name, "{}"), Call(name, f"{{{text}}}")], form.name)
