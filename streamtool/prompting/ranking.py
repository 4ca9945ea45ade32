"""Ranks tools by how well their words match a text: BM25 (Robertson et al., 1994) over names, descriptions and
parameters.

A word of a tool weighs more if few tools contain it. Words of a name count twice. Identifiers are split at underscores
and capital letters, and English endings are removed, so that "booked flights" matches `book_flight`. Chinese, Japanese
and Korean text is compared in pairs of characters, because it has few spaces. The ranking is a pure function of the
tools and the text.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from streamtool.core.bounded_cache import LruCache
from streamtool.core.conversation import Tool
from streamtool.core.json_value import Json

_SATURATION: Final = 1.5
"""BM25's `k1`: how fast further occurrences of a word lose weight."""
_LENGTH: Final = 0.75
"""BM25's `b`: how much the words of a long description lose weight."""
_DEPTH: Final = 4
"""Maximum depth of nested parameters that are searched."""
_MOST_READ: Final = 4000
"""Maximum number of characters of a text that are compared: half of them at its beginning, half at its end."""
_MOST_CACHED: Final = 64 * 1024
"""Maximum number of characters of the texts whose ranking is cached. Each request repeats those of its conversation."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_ENDINGS: Final = ("ing", "ed", "es", "s", "e")
_SHORTEST: Final = 3
"""Minimum length of a word without its ending."""


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in the form in which they are compared."""
    for word in _WORD.findall(_HUMP.sub(" ", text)):
        if word[0] >= "\u3040" and not word.isascii():
            yield from [word[i : i + 2] for i in range(len(word) - 1)] or [word]
        else:
            yield _stem(word.lower())


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST:
            return word[: -len(ending)]
    return f"{word[:-1]}i" if word.endswith("y") and len(word) > _SHORTEST else word


def _words_of_tool(tool: Tool) -> Iterator[str]:
    for text in (tool.name, tool.name, tool.description, *_texts(tool.parameters, _DEPTH)):
        yield from words_of(text)


def _texts(schema: Json, depth: int) -> Iterator[str]:
    """Yield the names and descriptions of a schema's parameters."""
    if not isinstance(schema, Mapping) or not depth:
        return
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        yield str(name)
        if isinstance(inner, Mapping):
            yield str(inner.get("description") or "")
        yield from _texts(inner, depth - 1)
    yield from _texts(schema.get("items"), depth - 1)


class ToolIndex:
    """An index of the words of these tools."""

    __slots__ = ("_ranked", "_weights")

    def __init__(self, tools: Sequence[Tool]) -> None:
        counts = [Counter(_words_of_tool(tool)) for tool in tools]
        sizes = [count.total() for count in counts]
        mean = sum(sizes) / len(sizes) or 1
        containing = Counter(word for count in counts for word in count)
        self._weights: dict[str, list[tuple[int, float]]] = {}
        """For each word, the positions of the tools that contain it, with its weight in each."""
        for place, count in enumerate(counts):
            norm = _SATURATION * (1 - _LENGTH + _LENGTH * sizes[place] / mean)
            for word, times in count.items():
                rare = math.log(1 + (len(tools) - containing[word] + 0.5) / (containing[word] + 0.5))
                self._weights.setdefault(word, []).append((place, rare * times * (_SATURATION + 1) / (times + norm)))
        self._ranked = LruCache[tuple[int, ...]](_MOST_CACHED)

    def rank(self, text: str) -> tuple[int, ...]:
        """Return the positions of the tools that have a word of the text, the best one first."""
        if len(text) > _MOST_READ:
            text = f"{text[: _MOST_READ // 2]}\n{text[-_MOST_READ // 2 :]}"
        ranked = self._ranked.get(text)
        if ranked is None:
            scores: dict[int, float] = {}
            for word in dict.fromkeys(words_of(text)):  # in order, because the sum depends on it
                for place, weight in self._weights.get(word, ()):
                    scores[place] = scores.get(place, 0.0) + weight
            ranked = tuple(sorted(scores, key=lambda place: (-scores[place], place)))
            self._ranked.put(text, ranked, len(text) + len(ranked))
        return ranked
