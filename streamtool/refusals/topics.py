"""The topics of a request: the words that name what its tools do, for `{topic}` in phrases.

"I don't have access to weather data" is a denial only if a tool for the weather is offered. The phrases are therefore
compiled once for all requests, and `{topic}` matches a word only if it is among the topics of this request. These are
determined when a reply begins like a denial, and cached per tool. The words in `topics.toml` extend them by synonyms
and translations.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import islice

from attrs import frozen

from streamtool.core.conversation import Tool
from streamtool.refusals.characters import fold_text

LONGEST = 40
"""Number of characters of the longest word that can be a topic."""
_SEARCHED_CHARACTERS = 200  # of a name or description
_SEARCHED_PARAMETERS = 50
_KNOWN_TOOLS = 1000  # number of tools whose topics are cached
UNSPACED = "\u2e80"
"""The first character of the scripts without spaces between words. All their characters are above it; letters of other
scripts above it, such as Hangul, do not occur in the phrases.
"""
_camel = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\W]+").split
_words = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*").findall
_unspaced_runs = re.compile(r"[\u30a0-\u30ff\u3400-\u9fff]{2,}").findall
_BY = frozenset(("by", "for", "from", "with", "in", "at", "via"))
"""Words in a tool's name that introduce its parameters (`get_weather_by_city`)."""
_ending = re.compile(r"(?<=..)[aeiouyаеиоуыэюя]*(?:'s|ing|ed|ments?|(?<![suiw])s)?[aeiouyаеиоуыэюя]*$")


def stem(word: str) -> str:
    """Return a folded word without simple endings, or the word itself if fewer than three letters would remain."""
    found = _ending.sub("", word, count=1)
    return found if len(found) > 2 else word


_TIME = stem("time")


@frozen
class Vocabulary:
    """The words in `topics.toml`, folded."""

    generic: frozenset[str]
    """Stems of words that never identify what a tool does."""
    live: frozenset[str]
    """Stems and beginnings of words that denials of current knowledge contain."""
    subjects: tuple[tuple[frozenset[str], bool], ...]
    """For each subject, its words (stems, and beginnings of words with an asterisk), and whether it changes all the
    time.
    """


@cache
def vocabulary() -> Vocabulary:
    """Return the words in `topics.toml`."""
    tree = tomllib.loads((files(__package__) / "topics.toml").read_text(encoding="utf-8"))
    return Vocabulary(
        frozenset(_entries(tree["generic"])),
        frozenset(_entries(tree["live"])),
        tuple((frozenset(_entries(row["words"])), row.get("current", False)) for row in tree["subjects"]),
    )


def _entries(words: str) -> Iterable[str]:
    # `fold_text` removes asterisks, which mean emphasis.
    for word in words.split():
        folded = fold_text(word)
        yield f"{folded}*" if word.endswith("*") else folded if folded >= UNSPACED else stem(folded)


class Topics:
    """The topics of one request."""

    __slots__ = ("_beginnings", "_endings", "_stems", "_tools")

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = tools
        self._stems: frozenset[str] | None = None
        self._beginnings: tuple[str, ...] = ()
        self._endings: tuple[str, ...] = ()

    def end(self, text: str) -> bool:
        """Return whether the last word of a folded text is a topic."""
        if self._stems is None:
            self._prepare()
        tail = text[-LONGEST:]
        if tail[-1:] >= UNSPACED:
            return tail.endswith(self._endings)
        found = _last_word(tail)
        return found is not None and len(tail) - found.start() < LONGEST and self._has(found[0])

    def _prepare(self) -> None:
        found: set[str] = set()
        for tool in self._tools:
            properties = (tool.parameters or {}).get("properties")
            parameters = tuple(islice(properties, _SEARCHED_PARAMETERS)) if isinstance(properties, dict) else ()
            name, description = tool.name[:_SEARCHED_CHARACTERS], tool.description[:_SEARCHED_CHARACTERS]
            found |= topics_of(name, description, tuple(key[:_SEARCHED_CHARACTERS] for key in parameters))
        self._beginnings = tuple(word[:-1] for word in found if word.endswith("*"))
        self._endings = tuple(word for word in found if word >= UNSPACED)
        self._stems = frozenset(found)

    def _has(self, word: str) -> bool:
        stems = self._stems or frozenset()
        # "l'agenda" and "wetter-api" contain a topic, "e-mails" and "real-time" are topics as a whole.
        return any(
            stem(part) in stems or part.startswith(self._beginnings)
            for part in (word, word.replace("-", ""), *re.split("['-]", word))
            if len(part) > 1
        )


_last_word = re.compile(rf"[^\W_{UNSPACED}-\uffff](?:[^\s{UNSPACED}-\uffff]*[^\W_])?$").search


@lru_cache(_KNOWN_TOOLS)
def topics_of(name: str, description: str, parameters: tuple[str, ...]) -> frozenset[str]:
    """Return the topics of one tool: folded stems, and beginnings of words with an asterisk."""
    known = vocabulary()
    parts = [fold_text(part) for part in _camel(name.rpartition(".")[2]) if part]
    cut = next((i for i, part in enumerate(parts) if i and part in _BY), len(parts))
    # The list of generic words contains names of parameters whose values a model may have to ask for ("I don't have
    # access to your location").
    described = [
        word
        for text in (description, *parameters)
        for whole in _words(" ".join(_camel(text)) if text in parameters else text)
        for word in re.split("['-]", fold_text(whole))
    ]
    text = fold_text(f"{name} {description}")
    own = {word for word in (stem(word) for word in described if len(word) > 1) if word not in known.generic}
    # "time" is generic, except in the name of the tool that returns it.
    own |= {word for word in map(stem, parts[:cut]) if word not in known.generic or word == _TIME}
    own.add(stem(fold_text(name)))
    found = {word for word in own if word < UNSPACED}
    for run in _unspaced_runs(text):
        found |= {run[i : i + 2] for i in range(len(run) - 1)}
    for words, current in known.subjects:
        if _concerns(words, own, text):
            found |= words
            found |= known.live if current else frozenset()
    return frozenset(found)


def _concerns(words: frozenset[str], own: set[str], text: str) -> bool:
    if not words.isdisjoint(own):
        return True
    for word in words:
        if word.endswith("*"):
            if any(other.startswith(word[:-1]) for other in own):
                return True
        elif word >= UNSPACED and word in text:
            return True
    return False
