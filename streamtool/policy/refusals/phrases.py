"""The phrases of all languages, out of a file, as automata.

The file's head explains its notation. All languages are looked for at once: nobody has to know in which one a model
answers. The languages share nothing but the automaton.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from attrs import frozen

from streamtool.errors import SettingsError
from streamtool.policy.refusals.automaton import Automaton, Match, Net
from streamtool.policy.refusals.characters import (
    APOSTROPHE,
    CLAUSE,
    HYPHEN,
    LINE,
    OPEN,
    OTHER,
    PAUSE,
    SPACE,
    STOP,
    WORD,
)
from streamtool.policy.refusals.notation import NotationError, Writer

Denial = Literal["tools denied", "environment denied"]
"""What a reply may deny in its opening; the word of the log record."""

_BETWEEN_WORDS = SPACE + LINE + STOP + PAUSE + OPEN + OTHER
_ANYWHERE = _BETWEEN_WORDS + WORD + APOSTROPHE + HYPHEN
_KEYS = {
    "": ("announced", "denied", "pieces", "spaces"),
    "denied": ("before", "environment", "tools", "unless"),
    "announced": ("before", "phrases", "unless"),
}


class PhrasesError(SettingsError, ValueError):
    """A file of phrases cannot be read; the message names the place."""


@frozen(eq=False)
class Phrases:
    """What to look for."""

    denied: Automaton
    """The opening of a reply; the label of a match is a `Denial`."""
    unless: Automaton
    """Anywhere in the rest of a sentence that denies: then it is no denial."""
    unless_next: Automaton
    """The same, at the beginning of the next sentence."""
    announced: Automaton
    """At the beginning of a clause."""
    unannounced: Automaton
    """Anywhere in a sentence that announces: then it is no announcement."""
    languages: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Phrases":
        """The phrases of a TOML text. Raises PhrasesError, with the place of what cannot be read."""
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PhrasesError(f"the phrases are no TOML: {error}", code="bad_toml") from None
        denied, unless, announced, unannounced = Net(), Net(), Net(), Net()
        for name, value in tree.items():
            language = _Language(name, value)
            language.add(denied, "denied", {"tools": "tools denied", "environment": "environment denied"})
            language.add(announced, "announced", {"phrases": "announced"})
            language.add(unless, "denied", {"unless": "unless"}, leads=False)
            language.add(unannounced, "announced", {"unless": "unless"}, leads=False)
        return cls(
            Automaton(denied),
            Automaton(unless, _BETWEEN_WORDS, _ANYWHERE),
            Automaton(unless),
            Automaton(announced, CLAUSE, CLAUSE),
            Automaton(unannounced, _BETWEEN_WORDS, _ANYWHERE),
            tuple(tree),
        )


@cache
def default_phrases() -> Phrases:
    """The phrases that come with this package."""
    return Phrases.parse((files(__package__) / "phrases.toml").read_text(encoding="utf-8"))


class _Language:
    """One table of the file, checked."""

    __slots__ = ("_name", "_pieces", "_spaces", "_tables")

    def __init__(self, name: str, tree: Any) -> None:
        self._name = name
        tree = _table(tree, name, _KEYS[""])
        self._spaces = tree.get("spaces", True)
        if not isinstance(self._spaces, bool):
            raise _wrong(f"{name}.spaces", "true or false")
        pieces = _table(tree.get("pieces", {}), f"{name}.pieces", None)
        for key, value in pieces.items():
            if not isinstance(value, str):
                raise _wrong(f"{name}.pieces.{key}", "a phrase")
        self._pieces = pieces
        self._tables = {
            part: {
                key: _list(value, f"{name}.{part}.{key}")
                for key, value in _table(tree.get(part, {}), f"{name}.{part}", _KEYS[part]).items()
            }
            for part in ("denied", "announced")
        }

    def add(self, net: Net, part: str, labels: Mapping[str, str], *, leads: bool = True) -> None:
        """Put the lists that have labels into a net, and what may stand before them."""
        writer = Writer(net, self._pieces, spaces=self._spaces)
        start = writer.start()
        (net.spaced if self._spaces else net.unspaced).append(start)
        table = self._tables[part]
        if leads:
            self._each(part, "before", table.get("before", ()), lambda phrase: writer.lead(start, phrase))
        for key, label in labels.items():

            def write(phrase: str, label: str = label) -> None:
                writer.phrase(start, phrase, Match(label, f"{self._name}: {phrase}"))

            self._each(part, key, table.get(key, ()), write)

    def _each(self, part: str, key: str, phrases: Iterable[str], write: Callable[[str], None]) -> None:
        for i, phrase in enumerate(phrases):
            place = f"{self._name}.{part}.{key}[{i}]"
            try:
                write(phrase)
            except NotationError as error:
                raise PhrasesError(f"{place}: {error}", param=place, code="bad_phrase") from None


def _table(value: Any, place: str, keys: tuple[str, ...] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(place, "a table")
    for key in value:
        if keys is not None and key not in keys:
            raise PhrasesError(f"{place}.{key}: there is no such key; the keys are {', '.join(keys)}", param=place)
    return value


def _list(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(place, "a list of phrases")
    return value


def _wrong(place: str, expected: str) -> PhrasesError:
    return PhrasesError(f"{place}: expected {expected}", param=place, code="bad_phrase")
