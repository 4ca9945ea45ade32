"""Reads the opening of a reply as it streams: does it deny the tools that it has, or the environment?

The text passes through three places. In *the opening* it is held while some phrase may still become whole; the first
character with which none can lets everything go, and the machine is out of the way from then on. Behind a whole phrase
comes *the rest of the sentence*, and then *the next sentence*: "I can't open files directly, but I can use the tool."
denies nothing, and neither does what goes on with "Let me use the tool." Only what is not taken back there is a denial;
nobody was going to see those words anyway.

What is held is the text as it came; what is compared are its folded characters (`characters`). Each is looked at once.
"""

from typing import Literal, cast

from streamtool.policy.refusals.automaton import Match, PhraseNode
from streamtool.policy.refusals.characters import END, LINE, OTHER, STOP, WORD, fold, kind
from streamtool.policy.refusals.phrases import Denial, Phrases, default_phrases

HELD = 300
"""Characters that may be held. Beyond it an opening that is not whole is none, and one that is whole is a denial."""

_Place = Literal["opening", "rest of the sentence", "next sentence"]


class OpeningWatch:
    """Looks for a denial in the opening of one reply. Ask `found` after each `feed`, and after `close`."""

    __slots__ = (
        "_before", "_held", "_match", "_node", "_phrases", "_place", "_stop", "decided", "found", "held", "phrase",
    )  # fmt: skip

    def __init__(self, phrases: Phrases | None = None) -> None:
        self._phrases = default_phrases() if phrases is None else phrases
        self._node: PhraseNode = self._phrases.denied.start()
        self._place: _Place = "opening"
        self._match = Match("", "")
        self._stop = ""
        """The last character, if it may have ended a sentence."""
        self._before = False
        """Something that counts has been read."""
        self._held: list[str] = []
        self.held = 0
        """Characters that are held back."""
        self.decided = False
        """Text passes untouched from here on: there is no denial, or `release` was called."""
        self.found: Denial | None = None
        """The reply denies this. What is held is not to be shown, and what is fed now is dropped."""
        self.phrase = ""
        """The phrase that was matched, as the file has it."""

    def feed(self, text: str) -> str:
        """The text that may be shown now; `text` itself when nothing is held."""
        if self.decided:
            return text
        if self.found is not None or not text:
            return ""
        self._held.append(text)
        for char in text:
            self.held += 1
            for folded in self._folded(char):
                if not self._step(folded):
                    return self.release()
                if self.found is not None:
                    break
            if self.held > HELD and self.found is None:
                if self._place == "opening":
                    return self.release()
                self._find()
            if self.found is not None:
                self.held = sum(map(len, self._held))
                return ""
        return ""

    def close(self) -> str:
        """What was held, if the reply ends here and denies nothing; the end of the text may also end a phrase."""
        if self.decided or self.found is not None:
            return ""
        if self._step(END) and self.found is not None:
            return ""
        return self.release()

    def release(self) -> str:
        """What is held, to be shown after all; no more is held."""
        text = self._held[0] if len(self._held) == 1 else "".join(self._held)
        self._held.clear()
        self.held = 0
        self.decided = True
        return text

    def _folded(self, char: str) -> str:
        if char == "`" and not self._before:  # code that stands first is quoted; emphasis that does is none
            return char
        folded = fold(char)
        self._before = self._before or bool(folded.strip())
        return folded

    def _step(self, char: str) -> bool:
        """Take one folded character; whether a denial is still possible."""
        if self._place == "opening":
            node = self._phrases.denied.step(self._node, char)
            if node is None:
                return False
            self._node = node
            if node.match is None:
                return True
            self._match = node.match
            self._place, self._node = "rest of the sentence", self._phrases.unless.start()
        if self._place == "rest of the sentence":
            return self._rest(char)
        return self._next(char)

    def _rest(self, char: str) -> bool:
        """A character of the sentence that denies, behind the phrase."""
        if self._stop and (kind(char) != WORD or self._stop != "."):  # config.yaml
            return self._next_begins() and self._next(char)
        node = self._phrases.unless.step(self._node, char)
        if node is None or node.match is not None:
            return False
        self._node = node
        self._stop = char if kind(char) == STOP else ""
        if char == END:
            return self._find()
        return self._next_begins() if char == "。" or kind(char) == LINE else True

    def _next_begins(self) -> bool:
        self._place, self._node = "next sentence", self._phrases.unless_next.start()
        return True

    def _next(self, char: str) -> bool:
        """A character of the sentence behind it."""
        if kind(char) in (STOP, OTHER):  # "..." and a closing quote still belong to the sentence before
            return True
        node = self._phrases.unless_next.step(self._node, char)
        if node is not None and node.match is not None:
            return False
        if node is None or char == END:
            return self._find()
        self._node = node
        return True

    def _find(self) -> bool:
        """It is a denial."""
        self.found = cast("Denial", self._match.label)
        self.phrase = self._match.phrase
        return True
