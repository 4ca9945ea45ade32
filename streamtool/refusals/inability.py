"""Sentences that combine an inability with what an offered tool does, in any words.

A phrase (`phrases.toml`) has to match completely. Here, a sentence counts as a denial if it combines a negated ability
("can't", "no way to", "not connected"), a verb or noun for what the ability is about ("check", "live data") and a topic
of the request, and nothing in it shows that it is about something else ("because the file", "until you"). The lists of
words are in `inability.toml`, for all languages at once.

A sentence is watched word by word. It may begin only with certain words, only certain words may precede the inability,
and only a known verb may follow "can't", so most text ends the watch at its first words. In languages without spaces
between words, clauses are matched with regular expressions.
"""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Final

from attrs import frozen

from streamtool.refusals.characters import END, LINE, SPACE, STOP, WORD, fold_text, kind_of
from streamtool.refusals.topics import UNSPACED, Topics, stem, vocabulary

_NEAR: Final = 6
"""Maximum number of words between a negation and its ability."""
_LATE: Final = 3
"""Maximum number of unknown words between an ability and a later negation."""
_LEAD: Final = 14
"""Maximum number of words before the inability."""
_WORDS: Final = 40
"""Maximum number of words of the sentence."""
_LEADS: Final = 2
"""Maximum number of sentences before the denial ("I'm sorry.")."""
_LEAD_WORDS: Final = 8
_CLAUSE: Final = 80
"""Maximum number of characters of a clause in a language without spaces."""
_SHORT: Final = 6
"""Maximum number of characters of such a clause that may precede the denial ("抱歉。")."""


@frozen
class WordList:
    """A list of words: whole ones, and beginnings."""

    whole: frozenset[str]
    begun: tuple[str, ...]

    @classmethod
    def of(cls, words: str) -> "WordList":
        """Return the words in a list of the file."""
        found = words.split()
        begun = tuple(fold_text(word[:-1]) for word in found if word.endswith("*"))
        return cls(frozenset(fold_text(word) for word in found if not word.endswith("*")), begun)

    def __contains__(self, word: str) -> bool:
        return word in self.whole or word.startswith(self.begun)


@frozen
class Clauses:
    """Regular expressions for clauses in a language without spaces."""

    words: tuple[str, ...]
    """The words that a clause may begin with."""
    begins: re.Pattern[str]
    inability: re.Pattern[str]
    general: re.Pattern[str]
    about: re.Pattern[str]
    others: re.Pattern[str]

    @classmethod
    def of(cls, row: dict[str, str]) -> "Clauses":
        """Return the expressions for a row of the file."""
        words = tuple(fold_text(row["begins"]).split())
        lists = (re.compile("|".join(fold_text(row[key]).replace("#", "[0-9]").split())) for key in _CLAUSE_KEYS)
        return cls(words, *lists)

    def may_begin(self, clause: str) -> bool:
        """Return whether a clause may begin like this."""
        return clause.startswith(self.words) or any(word.startswith(clause) for word in self.words)


_CLAUSE_KEYS: Final = ("begins", "inability", "general", "about", "others")


@frozen
class SentenceTables:
    """The lists of the file."""

    openers: WordList
    between: WordList
    negations: WordList
    alone: WordList
    exceeding: WordList
    abilities: WordList
    verbal: WordList
    passed: WordList
    verbs: WordList
    others: WordList
    causes: WordList
    selves: WordList
    linking: WordList
    pointing: WordList
    answers: WordList
    waiting: WordList
    subjective: WordList
    usual: WordList
    general: WordList
    restricting: WordList
    shared: WordList
    live: WordList
    """The words of `topics.toml` for current knowledge."""
    first: WordList
    """Beginnings of the words that a sentence may begin with, so that most text is ruled out at once."""
    early: WordList
    """Beginnings of the words that may precede the inability."""
    subjects: WordList
    """The words of all subjects, except for those that sentences about others contain as well."""
    unspaced: tuple[Clauses, ...]


@cache
def tables() -> SentenceTables:
    """Return the lists of the file."""
    tree: dict[str, Any] = tomllib.loads((files(__package__) / "inability.toml").read_text(encoding="utf-8"))
    unspaced = tuple(map(Clauses.of, tree.pop("unspaced")))
    known = {name: WordList.of(words) for name, words in tree.items()}
    general = ("shared", "verbs", "abilities", "between", "openers", "negations")
    subjects = frozenset().union(*(words for words, _ in vocabulary().subjects))
    own = [word for word in subjects if not any(word.rstrip("*") in known[name] for name in general)]
    begun = tuple(word[:-1] for word in own if word.endswith("*") and word < UNSPACED)
    first = _beginnings(known[name] for name in ("openers", "alone"))
    early = _beginnings(known[name] for name in _EARLY)
    return SentenceTables(
        **known,
        first=first,
        early=early,
        live=WordList.of(" ".join(vocabulary().live)),
        subjects=WordList(frozenset(own), begun),
        unspaced=unspaced,
    )


_EARLY: Final = ("openers", "alone", "between", "negations", "abilities", "verbal", "verbs", "exceeding", "causes")


def _beginnings(lists: Iterable[WordList]) -> WordList:
    """Return all beginnings of the words in these lists."""
    whole: set[str] = set()
    begun: tuple[str, ...] = ()
    for words in lists:
        for word in (*words.whole, *words.begun):
            whole.update(word[:end] for end in range(1, len(word) + 1))
        begun += words.begun
    return WordList(frozenset(whole), begun)


class Inability:
    """A watch for the parts of a denial in one sentence, word by word."""

    __slots__ = (
        "_about", "_cause", "_comma", "_general", "_known", "_negated", "_own", "_pointed", "_since", "_topic",
        "_unknown", "_verb", "_waits", "complete", "count", "over", "unable",
    )  # fmt: skip

    def __init__(self) -> None:
        self._known = tables()
        self.count = 0
        """Number of words so far."""
        self._negated = self._since = self._unknown = 0
        """Positions of the last negation and of the last ability, and number of unknown words."""
        self.unable = False
        self._verb = self._waits = self._pointed = False
        """Whether a verb must follow, whether a negation may follow late, whether the last word points to one thing."""
        self._about = self._topic = self._own = self._general = False
        self._cause = self._comma = False
        """Whether a word for the model itself must follow, and whether a comma has ended the denial."""
        self.complete = False
        """Whether the sentence has all parts of a denial."""
        self.over = False
        """Whether the clause with these parts has ended."""

    @property
    def is_open(self) -> bool:
        """Whether the next word may be any word."""
        return self.unable or self.over or bool(self._negated) or self._waits

    @property
    def is_lead(self) -> bool:
        """Whether the sentence may precede a denial: it consists of a few words without content."""
        return self.count <= _LEAD_WORDS and not (self.unable or self._negated or self._about)

    def feed(self, word: str, *, topic: bool, foreign: bool) -> bool:
        """Read the next word or punctuation mark, and return whether the sentence may still be a denial. `topic`
        is whether the word is a topic of the request, `foreign` whether it belongs to another subject.
        """
        known = self._known
        if self.over:
            return True
        if self._cause:
            if word in known.linking:
                return True
            self._cause = False
            if word not in known.selves:
                return False
        if word == ",":
            self._comma = self.complete
            return True
        if self._comma:
            self._comma = False
            if word in known.answers:
                return False
            self.over = word not in known.causes
        if word in (":", ";") or (self.count and word in known.causes):
            self._cause = True
            return True
        self.count += 1
        if self.over:
            return True
        return self._continues(word, topic=topic, foreign=foreign)

    def _continues(self, word: str, *, topic: bool, foreign: bool) -> bool:
        """Read a word, and return whether it may continue a denial."""
        known = self._known
        if self.count == 1 and not (word in known.openers or word in known.alone):
            return False
        if self.complete and word in known.restricting:
            return False
        self._general = self._general or word in known.general
        if self.count == 1:  # the subject may be the topic, rather than the model
            self._waits = word in known.verbs or word in known.subjective
        self._own = self._own or word in known.selves
        if word in known.others or (self.unable and (word in ("which", "that") or word in known.exceeding)):
            return False
        if self.count > _WORDS or foreign or word[0].isdecimal() or (self._pointed and topic):
            return False
        self._pointed = self.unable and word in known.pointing
        verb = topic or word in known.verbs
        if self._verb and not topic and word in known.passed:
            return True
        if self._verb and not verb and word not in known.verbal:
            return False
        self._verb = False
        self._topic = self._topic or topic
        if not self.unable and not self._may_precede(word, verb=verb):
            return False
        if self.unable and not (self._topic or verb or self._is_usual(word)):
            return False
        self._about = self._about or verb
        self.complete = self.unable and self._about and self._topic and self._own and self._general
        return True

    def _is_usual(self, word: str) -> bool:
        """Return whether a word may appear between the inability and its topic."""
        return any(word in getattr(self._known, name) for name in (*_EARLY, "passed", "pointing", "usual", "selves"))

    def _may_precede(self, word: str, *, verb: bool) -> bool:
        """Read a word up to the inability, and return whether it may precede or complete the inability."""
        known = self._known
        negates, verbal = word in known.negations, word in known.verbal
        able = verbal or word in known.abilities
        if word in known.alone:
            self.unable = self._verb = True
        elif word in known.exceeding:
            self.unable = not self._negated
        elif able:
            if self._negated and self.count - self._negated <= _NEAR:
                self.unable, self._verb = True, verbal
            elif word == "can":  # "I can check the weather, but not the traffic."
                return False
            self._since, self._waits = self.count, self._waits or word in known.waiting
        elif negates:
            self._negated = self.count
            # "kann nicht", "ne peux pas"
            self.unable = bool(self._since) and (self._waits or self.count - self._since <= _NEAR)
        elif not verb and self.count > 1 and word not in known.between:
            self._unknown += 1
        most = (1 if self._negated else 0) + (_LATE if self._waits else 0)
        return self.unable or (self._unknown <= most and self.count <= _LEAD)


class SentenceWatch:
    """A watch for such a denial at the beginning of a reply, character by character."""

    __slots__ = (
        "_clause",
        "_concerned",
        "_inability",
        "_leads",
        "_stop",
        "_topics",
        "_word",
        "complete",
    )

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._inability = Inability()
        self._word = ""
        self._clause = ""
        """The clause, in a language without spaces."""
        self._leads = 0
        self._stop = False
        """Whether the last character may have ended the sentence."""
        self._concerned = False
        """Whether a topic has been read that is not only a word for current knowledge."""
        self.complete = False
        """Whether the sentence has all parts of a denial."""

    def feed(self, char: str) -> bool:
        """Read the next folded character, and return whether the text may still be a denial."""
        if char >= UNSPACED or self._clause:
            return self._feed_unspaced(char)
        kind = kind_of(char)
        if kind == WORD or (char in "'-" and self._word):
            if self._stop and not self._word:
                self._stop = False
            self._word += char
            return self._may_become()
        if self._word and not self._end_word():
            return False
        if self._stop and kind in (SPACE, LINE):
            return self._end_sentence()
        self._stop = kind == STOP
        if char == END:
            return self._end_sentence() and self.complete
        if kind == LINE:
            return self._end_sentence() if self._inability.count else True
        if kind in (SPACE, STOP):
            return True
        if not self._inability.count:
            return False  # a quotation, a list, code
        return self._read(char if char in ":;" else ",")

    def _may_become(self) -> bool:
        """Return whether the unfinished word may become one that the sentence may contain here."""
        inability, known = self._inability, tables()
        if inability.count == 0 and self._leads == 0:
            return self._word in known.first
        return inability.is_open or self._word in known.early

    def _end_word(self) -> bool:
        """Read the word that has ended, or its parts."""
        word, self._word = self._word.strip("-"), ""
        known = tables()
        if "'" not in word or any(word in one for one in (known.alone, known.negations, known.openers, known.between)):
            return self._read(word)
        first, _, rest = word.partition("'")
        # "d'acces", "n'ai"; but "Anna's" is not the user's
        parts = (first,) if rest == "s" and word in known.shared else (first, rest)
        return all(self._read("'s" if part == "s" and first not in known.shared else part) for part in parts if part)

    def _read(self, word: str) -> bool:
        """Read a word or a punctuation mark."""
        known = tables()
        early = not self._inability.unable and word in known.between  # "a language model"
        topic = word[0].isalnum() and not early and self._topics.end(word)
        live = topic and (stem(word) in vocabulary().live or word in known.live)
        self._concerned = self._concerned or (topic and not live)
        foreign = not (topic or self._concerned or word in known.shared) and (
            stem(word) in known.subjects.whole or word in known.subjects
        )
        if not self._inability.feed(word, topic=topic, foreign=foreign):
            return False
        self.complete = self._inability.complete
        return True

    def _end_sentence(self) -> bool:
        """End the sentence, which may precede the denial."""
        if self.complete:
            return True
        if not self._inability.is_lead or self._leads >= _LEADS:
            return False
        self._leads += 1
        self._inability, self._stop = Inability(), False
        return True

    def _feed_unspaced(self, char: str) -> bool:
        """Read a character of a language without spaces between words. A clause is examined at its end."""
        if self.complete:
            return True
        self._clause += char if char != END else "。"
        clause, ends = self._clause, char in "。!?！？" or kind_of(char) == LINE or char == END
        if not clause.strip("* ") or (len(clause.strip()) == 1 and kind_of(char) != WORD):
            return not clause.strip("* ")
        if not (self._leads or any(row.may_begin(clause.strip()) for row in tables().unspaced)):
            return False
        if not (ends or char in "、,，" or len(clause) == _CLAUSE):
            return True
        for row in tables().unspaced:
            if not row.begins.match(clause.strip()):
                continue
            if row.others.search(clause):
                return False
            if all(one.search(clause) for one in (row.inability, row.general, row.about)):
                self.complete = any(self._topics.end(clause[:end]) for end in range(1, len(clause) + 1))
            if self.complete or (len(clause) < _CLAUSE and not ends):
                return True
        if ends and self._leads < _LEADS and len(clause) <= _SHORT and char != END:
            self._leads, self._clause = self._leads + 1, " "
            return True
        return False
