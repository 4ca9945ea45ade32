"""Upper bounds on the number of characters of a call that the parser buffers, derived from the table of formats.

In a call written exactly in its format, text is buffered in four places: while it may be the beginning of a marker;
from the marker until the call starts, when its name is known and the arguments have begun; inside the call, where a
value may end; and at the end, where closers may follow. The bounds hold for calls written by `write` and depend on the
lengths of the name and the keys. `tests/statemachine/test_held.py` checks the parser against them.
"""

import json
from collections.abc import Callable, Iterator

from attrs import frozen

from statemachine import Call, Format, write
from statemachine.formats.format import Anchor, Envelope, Expression, Parameters
from statemachine.formats.markers import spell
from statemachine.machine.waiting import openers

ESCAPE = 5
r"""Length of an incomplete JSON escape: `\u00e`."""
LONG_ESCAPE = 9
r"""Length of an incomplete Python escape: `\U0001F60`."""
VALUES = ('"WWW"', "3", "true", "null", "[1]", '{"a": 1}')
"""One value of each kind, because some formats write the type of a value."""


@frozen
class BufferBounds:
    """Upper bounds, in characters, for a call with a given name and with keys up to a given length."""

    marker: int
    """Bound for text that may be the beginning of a marker."""
    opening: int
    """Bound from the first character of the call's first marker until the call starts."""
    inside: int
    """Bound between the start and the end of the call."""
    closing: int
    """Bound after the end of the call, while a closer may follow."""
    values: bool
    """Whether values other than strings are buffered to their end as well."""


def buffer_bounds(form: Format, name: str, key: str) -> BufferBounds:
    """Return the bounds for a call to a tool with this name, with keys no longer than `key`."""
    text = WrittenCalls(form, "Q" * len(name), "Z" * len(key))
    return BufferBounds(
        marker=max((len(marker) - 1 for marker in openers(form)), default=0),
        opening=max(text.opening(), text.empty()),
        inside=text.inside(),
        closing=max((len(closer) for closer in text.closers()), default=0) + 1,
        values=isinstance(form.variants[0].body, Parameters),
    )


class WrittenCalls:
    """Calls written in one format, with a name and a key whose letters occur nowhere else."""

    def __init__(self, form: Format, name: str, key: str) -> None:
        self.form = form
        self.variant = form.variants[0]
        self.name = name
        self.key = key

    def written(self, arguments: str) -> str:
        """Return a call with these arguments."""
        return write([Call(self.name, arguments)], self.form.name)

    def opening(self) -> int:
        """Return the offset where the parser starts a call that has arguments."""
        text = self.written(f'{{"{self.key}": "VVV"}}')
        body = self.variant.body
        match body:
            case Envelope() if self.form.openers or self.form.fence or body.thought:
                return self.after_name(text) + 1
            case Expression() if self.form.anchor is not Anchor.ANYWHERE:  # only an argument shows that it is not prose
                return text.index("VVV")
            case Expression() if self.variant.name_rule is None:
                return self.after_name(text) + 1
            case Parameters(close=close) if "{key}" in close:  # recognized as a key once a value follows
                return text.index("VVV") + 1
            case _:  # at the first key, after the brace or marker that opens the arguments
                return text.index(self.key)

    def empty(self) -> int:
        """Return the offset where the parser starts a call that has no arguments.

        In formats with marked parameters, this is the end of the call's closer, because nothing before it shows that
        the arguments have begun. For all other formats, return 0.
        """
        if not isinstance(self.variant.body, Parameters):
            return 0
        text, close = self.written("{}"), self.closer()
        return text.rindex(close) + len(close)

    def inside(self) -> int:
        """Return the maximum number of argument characters that may be buffered."""
        match self.variant.body:
            case Parameters():
                return max(self.between(), self.last())
            case Expression(assign=assign, quote=quote, flag=flag):
                return max(len(self.key) + len(flag) + len(assign), len(quote), LONG_ESCAPE)
            case _:
                return max(ESCAPE, self.string_end())

    def string_end(self) -> int:
        """Return the distance from the closing quote of a JSON string to the point where it is recognized as the
        closing quote.

        The next key or the closing brackets show that the string has ended.
        """
        text = self.written(f'{{"{self.key}": "VVV", "{self.key}2": "WWW"}}')
        key = text.index(self.key + "2") + len(self.key + '2"') - text.index("VVV") - len("VVV")
        rest = text[text.index("WWW") + 3 :]
        return max(key - 1, len(rest) - len(rest.lstrip('"}] \n')))

    def between(self) -> int:
        """Return the distance from the end of a value to the beginning of the next one."""
        other = "X" * len(self.key)

        def members(value: str) -> str:
            return self.written(f'{{"{self.key}": "VVV", "{other}": {value}}}')

        text = members(VALUES[0])
        plain = text.index("WWW") - text.index("VVV") - 3
        return plain + max(len(members(value)) - len(value.strip('"')) - len(text) + 3 for value in VALUES)

    def last(self) -> int:
        """Return the distance from the end of the last value to the end of the call."""
        text, close = self.written(f'{{"{self.key}": "VVV"}}'), self.closer()
        return text.index(close, text.index("VVV")) + len(close) - text.index("VVV") - 3

    def closers(self) -> Iterator[str]:
        """Yield the markers that may close a call."""
        yield self.closer()
        yield from (spell(close) for _, close in self.form.wrappers)
        yield from ("```" for _ in self.form.fence[:1])

    def closer(self) -> str:
        """Return the call's own closer."""
        return spell(self.form.close.replace("{tool}", self.name))

    def after_name(self, text: str) -> int:
        """Return the offset of the end of the name."""
        return text.rindex(self.name) + len(self.name)


def formula(measure: Callable[[str, str], int]) -> str:
    """Return a bound as a readable formula: `22 + name`, `14 + 2 × key + name`."""
    base = measure("n", "k")
    by_key, by_name = measure("n", "kk") - base, measure("nn", "k") - base
    parts = [str(base - by_key - by_name)] if base > by_key + by_name or not by_key + by_name else []
    for times, word in ((by_key, "key"), (by_name, "name")):
        if times:
            parts.append(word if times == 1 else f"{times} × {word}")
    return " + ".join(parts)


def example(form: Format, name: str, key: str) -> str:
    """Return calls in this format that together have arguments of every kind."""
    members = ", ".join(f'"{key[:-1]}{number}": {value}' for number, value in enumerate(VALUES))
    text = f'"{key}": {json.dumps("a <b> & {c} [d]")}'
    return write([Call(name, f"{{{text}, {members}}}"), Call(name, "{}"), Call(name, f"{{{text}}}")], form.name)
