"""Refusals that are none: a reply denies its tools or its environment, or announces a call and does not make it.

`OpeningWatch` reads a reply as it streams and holds its first words only while they may still become a denial;
`announced` looks at the last sentence of a reply that made no call. Which sentences those are is data: `phrases.toml`,
several languages, compiled by `phrases` into the automata of `automaton`. Nothing here decides what follows from a
finding.
"""

from streamtool.policy.refusals.announcement import announced
from streamtool.policy.refusals.opening import HELD, OpeningWatch
from streamtool.policy.refusals.phrases import Denial, Phrases, PhrasesError, default_phrases, own_phrases

__all__ = ["HELD", "Denial", "OpeningWatch", "Phrases", "PhrasesError", "announced", "default_phrases", "own_phrases"]
