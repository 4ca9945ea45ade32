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
from streamtool.policy.refusals.notation import NotationError, NotationWriter

Denial = Literal["tools denied", "environment denied"]
"""What a reply may deny in its opening; the word of the log record."""

_BETWEEN_WORDS = SPACE + LINE + STOP + PAUSE + OPEN + OTHER
_ANYWHERE = _BETWEEN_WORDS + WORD + APOSTROPHE + HYPHEN
_REPLACE = "replace"
"""The one key of a file that is no language."""
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
    def parse(cls, text: str, base: str = "") -> "Phrases":
        """The phrases of a TOML text, and with them those of the text `base`, unless the first says `replace = true`.

        Where both have a language, the first may use the pieces of the second, and gives the second none.
        Raises PhrasesError, with the place of what cannot be read.
        """
        tree, below = _loaded(text), _loaded(base)
        replace = tree.pop(_REPLACE, False)
        if not isinstance(replace, bool):
            raise _wrong(_REPLACE, "true or false")
        if replace:
            below = {}
        denied, unless, announced, unannounced = Net(), Net(), Net(), Net()
        names = tuple(dict.fromkeys((*below, *tree)))
        for name in names:
            known = _Language(name, below[name]) if name in below else None
            own = _Language(name, tree[name], known) if name in tree else None
            languages = [language for language in (own, known) if language is not None]
            _add(languages, denied, "denied", {"tools": "tools denied", "environment": "environment denied"})
            _add(languages, announced, "announced", {"phrases": "announced"})
            _add(languages, unless, "denied", {"unless": "unless"}, leads=False)
            _add(languages, unannounced, "announced", {"unless": "unless"}, leads=False)
        return cls(
            Automaton(denied),
            Automaton(unless, _BETWEEN_WORDS, _ANYWHERE),
            Automaton(unless),
            Automaton(announced, CLAUSE, CLAUSE),
            Automaton(unannounced, _BETWEEN_WORDS, _ANYWHERE),
            names,
        )


@cache
def default_phrases() -> Phrases:
    """The phrases that come with this package."""
    return Phrases.parse(_builtin())


def own_phrases(text: str) -> Phrases:
    """The phrases of a TOML text, added to those that come with this package. Raises PhrasesError."""
    return Phrases.parse(text, _builtin())


def _builtin() -> str:
    return (files(__package__) / "phrases.toml").read_text(encoding="utf-8")


def _loaded(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PhrasesError(f"the phrases are no TOML: {error}", code="bad_toml") from None


class _Language:
    """One table of a file, checked. `below` is the same language of another one, whose pieces it may use."""

    __slots__ = ("_name", "_tables", "pieces", "spaces")

    def __init__(self, name: str, tree: Any, below: "_Language | None" = None) -> None:
        self._name = name
        tree = _table(tree, name, _KEYS[""])
        spaces = tree.get("spaces", below.spaces if below else True)
        if not isinstance(spaces, bool):
            raise _wrong(f"{name}.spaces", "true or false")
        if below is not None and below.spaces != spaces:
            raise _wrong(f"{name}.spaces", f"{str(below.spaces).lower()}, as it is built in")
        self.spaces: bool = spaces
        pieces = _table(tree.get("pieces", {}), f"{name}.pieces", None)
        for key, value in pieces.items():
            if not isinstance(value, str):
                raise _wrong(f"{name}.pieces.{key}", "a phrase")
        self.pieces: Mapping[str, str] = {**(below.pieces if below else {}), **pieces}
        self._tables = {
            part: {
                key: _list(value, f"{name}.{part}.{key}")
                for key, value in _table(tree.get(part, {}), f"{name}.{part}", _KEYS[part]).items()
            }
            for part in ("denied", "announced")
        }

    def add(self, net: Net, start: int | None, part: str, labels: Mapping[str, str], *, leads: bool) -> int:
        """Put the lists that have labels into a net, and what may stand before them. Returns where they begin."""
        writer = NotationWriter(net, self.pieces, spaces=self.spaces)
        if start is None:
            start = writer.start()
            (net.spaced if self.spaces else net.unspaced).append(start)
        table = self._tables[part]
        if leads:
            self._each(part, "before", table.get("before", ()), lambda phrase: writer.lead(start, phrase))
        for key, label in labels.items():

            def write(phrase: str, label: str = label) -> None:
                writer.phrase(start, phrase, Match(label, f"{self._name}: {phrase}"))

            self._each(part, key, table.get(key, ()), write)
        return start

    def _each(self, part: str, key: str, phrases: Iterable[str], write: Callable[[str], None]) -> None:
        for i, phrase in enumerate(phrases):
            place = f"{self._name}.{part}.{key}[{i}]"
            try:
                write(phrase)
            except NotationError as error:
                raise PhrasesError(f"{place}: {error}", param=place, code="bad_phrase") from None


def _add(languages: Iterable[_Language], net: Net, part: str, labels: Mapping[str, str], *, leads: bool = True) -> None:
    """Put the same language of several files into a net: what may stand before the phrases of one may before all."""
    start: int | None = None
    for language in languages:
        start = language.add(net, start, part, labels, leads=leads)


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
