"""The phrases in all languages, read from a file and compiled into automata.

The file's header explains the notation. All languages are searched at the same time, since the language of a reply is
not known in advance. The languages share only the automaton.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from attrs import frozen

from streamtool.core.errors import SettingsError
from streamtool.refusals.automaton import Automaton, Match, Nfa
from streamtool.refusals.characters import APOSTROPHE, CLAUSE, HYPHEN, LINE, OPEN, OTHER, PAUSE, SPACE, STOP, WORD
from streamtool.refusals.notation import NotationError, PhraseCompiler

Denial = Literal["tools denied", "environment denied", "topic denied"]
"""A kind of denial in the opening of a reply: of all tools, of access to files, commands or the network, or of what an
offered tool does.
"""
ENVIRONMENT: Final = "environment denied"

_DENIALS: Final = {"tools": "tools denied", "topic": "topic denied", "environment": ENVIRONMENT}
_BETWEEN_WORDS = SPACE + LINE + STOP + PAUSE + OPEN + OTHER
_ANYWHERE = _BETWEEN_WORDS + WORD + APOSTROPHE + HYPHEN
_REPLACE = "replace"
"""The only key in a file that is not a language."""
_KEYS = {
    "": ("announced", "denied", "pieces", "spaces"),
    "denied": ("before", "environment", "tools", "topic", "unless"),
    "announced": ("before", "phrases", "unless"),
}


class PhrasesError(SettingsError, ValueError):
    """A file of phrases cannot be read; the message names the entry that is wrong."""


@frozen(eq=False)
class Phrases:
    """Compiled phrases."""

    denied: Automaton
    """Phrases in the opening of a reply; the label of each match is a `Denial`."""
    unless: Automaton
    """Phrases that cancel a denial, anywhere in the rest of its sentence."""
    unless_next: Automaton
    """The same phrases, at the beginning of the next sentence."""
    announced: Automaton
    """Phrases that announce a call, at the beginning of a clause."""
    unannounced: Automaton
    """Phrases that cancel an announcement, anywhere in its sentence."""
    languages: tuple[str, ...] = ()
    sentences: bool = True
    """Whether denials in other words count as well (`inability`)."""

    @classmethod
    def parse(cls, text: str, base: str = "") -> "Phrases":
        """Return the phrases in `text` (TOML) together with the ones in `base`, unless `text` contains `replace =
        true`.

        If both define a language, the phrases in `text` may use the pieces from `base`, but not vice versa. Raises
        PhrasesError, naming the entry, if either cannot be read.
        """
        tree, below = _load_toml(text), _load_toml(base)
        replace = tree.pop(_REPLACE, False)
        if not isinstance(replace, bool):
            raise _error(_REPLACE, "true or false")
        if replace:
            below = {}
        denied, unless, announced, unannounced = Nfa(), Nfa(), Nfa(), Nfa()
        names = tuple(dict.fromkeys((*below, *tree)))
        for name in names:
            known = _Language(name, below[name]) if name in below else None
            own = _Language(name, tree[name], known) if name in tree else None
            languages = [language for language in (own, known) if language is not None]
            # Denials of the environment are added last, since they do not always count: of several phrases that match,
            # the one that was added first wins.
            _add(languages, denied, "denied", _DENIALS)
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
            sentences=not replace and "en" in names,
        )


@cache
def default_phrases() -> Phrases:
    """Return the built-in phrases."""
    return Phrases.parse(_builtin())


def extended_phrases(text: str) -> Phrases:
    """Return the built-in phrases together with the ones in a TOML document. Raises PhrasesError."""
    return Phrases.parse(text, _builtin())


def _builtin() -> str:
    return (files(__package__) / "phrases.toml").read_text(encoding="utf-8")


def _load_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PhrasesError(f"the phrases are not valid TOML: {error}", code="bad_toml") from None


class _Language:
    """The validated table of one language. `below` is the same language in the base file, whose pieces it may use."""

    def __init__(self, name: str, tree: Any, below: "_Language | None" = None) -> None:
        self._name = name
        tree = _check_table(tree, name, _KEYS[""])
        spaces = tree.get("spaces", below.spaces if below else True)
        if not isinstance(spaces, bool):
            raise _error(f"{name}.spaces", "true or false")
        if below is not None and below.spaces != spaces:
            raise _error(f"{name}.spaces", f"{str(below.spaces).lower()}, as in the built-in phrases")
        self.spaces: bool = spaces
        pieces = _check_table(tree.get("pieces", {}), f"{name}.pieces", None)
        for key, value in pieces.items():
            if not isinstance(value, str):
                raise _error(f"{name}.pieces.{key}", "a phrase")
        self.pieces: Mapping[str, str] = {**(below.pieces if below else {}), **pieces}
        self._tables = {
            part: {
                key: _check_list(value, f"{name}.{part}.{key}")
                for key, value in _check_table(tree.get(part, {}), f"{name}.{part}", _KEYS[part]).items()
            }
            for part in ("denied", "announced")
        }

    def add(self, net: Nfa, start: int | None, part: str, labels: Mapping[str, str], *, leads: bool) -> int:
        """Add the phrases of the lists named in `labels`, and the phrases that may precede them, to an NFA. Return the
        start state.
        """
        writer = PhraseCompiler(net, self.pieces, spaces=self.spaces)
        if start is None:
            start = writer.new_start()
            (net.spaced if self.spaces else net.unspaced).append(start)
        table = self._tables[part]
        if leads:
            self._each(part, "before", table.get("before", ()), lambda phrase: writer.add_lead(start, phrase))
        for key, label in labels.items():

            def write(phrase: str, label: str = label) -> None:
                writer.add_phrase(start, phrase, Match(label, f"{self._name}: {phrase}"))

            self._each(part, key, table.get(key, ()), write)
        return start

    def _each(self, part: str, key: str, phrases: Iterable[str], write: Callable[[str], None]) -> None:
        for i, phrase in enumerate(phrases):
            place = f"{self._name}.{part}.{key}[{i}]"
            try:
                write(phrase)
            except NotationError as error:
                raise PhrasesError(f"{place}: {error}", param=place, code="bad_phrase") from None


def _add(languages: Iterable[_Language], net: Nfa, part: str, labels: Mapping[str, str], *, leads: bool = True) -> None:
    """Add the phrases of one language, which may be defined in several files, to an NFA. A leading phrase in one file
    may precede the phrases in all files.
    """
    start: int | None = None
    for language in languages:
        start = language.add(net, start, part, labels, leads=leads)


def _check_table(value: Any, place: str, keys: tuple[str, ...] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _error(place, "a table")
    for key in value:
        if keys is not None and key not in keys:
            raise PhrasesError(f"{place}.{key}: unknown key; the keys are {', '.join(keys)}", param=place)
    return value


def _check_list(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _error(place, "a list of phrases")
    return value


def _error(place: str, expected: str) -> PhrasesError:
    return PhrasesError(f"{place}: expected {expected}", param=place, code="bad_phrase")
