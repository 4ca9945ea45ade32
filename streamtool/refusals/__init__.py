"""Unjustified refusals: a reply denies having tools or access to its environment, or announces a call without making
it.

`OpeningWatch` reads a reply as it streams, and buffers its first words only while they may still become a denial.
`find_announcement` checks the last sentence of a reply without calls. The phrases, in several languages, are data:
`phrases` reads them from `phrases.toml` and compiles them into the automata of `automaton`. `inability` finds denials
in other words. This package only reports its findings; other packages decide on the consequences.
"""

from streamtool.refusals.announcement import find_announcement
from streamtool.refusals.inability import tables as sentence_tables
from streamtool.refusals.opening import OpeningWatch
from streamtool.refusals.phrases import Denial, Phrases, PhrasesError, default_phrases, extended_phrases
from streamtool.refusals.topics import Topics

__all__ = [
    "Denial",
    "OpeningWatch",
    "Phrases",
    "PhrasesError",
    "Topics",
    "default_phrases",
    "extended_phrases",
    "find_announcement",
    "sentence_tables",
]
