"""Detection of a denial in the opening of a reply while the reply is streamed. A denial claims to have no tools, no
access to the environment, or no access to what an offered tool does.

The text is read in three phases. In *the opening*, it is buffered while some phrase may still match; the first
character that rules out all phrases releases the text and ends the watch. After a complete phrase, *the rest of the
sentence* and then *the next sentence* are read, because either may retract the denial. "I can't open files directly,
but I can use the tool." denies nothing, and neither does a sentence that is followed by "Let me use the tool." Only a
statement that is not retracted counts as a denial. Buffering the text that long does no harm, since a denial is not
shown anyway.

The text is buffered unchanged, while its folded characters (`characters`) are compared with the phrases. Each character
is examined once.
"""

from typing import Literal, cast

from streamtool.refusals.automaton import Match, PhraseNode
from streamtool.refusals.characters import END, INSIDE, LINE, OTHER, STOP, WORD, fold, fold_text, kind_of
from streamtool.refusals.inability import SentenceWatch
from streamtool.refusals.phrases import ENVIRONMENT, Denial, Phrases, default_phrases
from streamtool.refusals.topics import LONGEST, UNSPACED, Topics

HELD = 300
"""Maximum number of characters to buffer. When it is exceeded, a complete phrase counts as a denial, and an incomplete
one does not.
"""

_IN_WORD = INSIDE + OTHER
_OTHER_WORDS = Match("topic denied", "inability and topic")
_Place = Literal["opening", "rest of the sentence", "next sentence"]


class OpeningWatch:
    """A watch for a denial in the opening of one reply. Check `found` after each `feed` and after `close`."""

    __slots__ = (
        "_before",
        "_environment",
        "_held",
        "_match",
        "_node",
        "_phrases",
        "_place",
        "_sentence",
        "_stop",
        "_topics",
        "decided",
        "found",
        "held",
        "phrase",
    )

    def __init__(
        self, phrases: Phrases | None = None, topics: Topics | None = None, *, environment: bool = True
    ) -> None:
        """Begin to watch one reply. `environment` is whether a denial of access to the environment counts."""
        self._phrases = default_phrases() if phrases is None else phrases
        self._topics = topics
        self._environment = environment
        self._node: PhraseNode | None = self._phrases.denied.start()
        self._sentence = SentenceWatch(topics) if topics is not None and self._phrases.sentences else None
        """The watch for a denial in other words, while there may be one."""
        self._place: _Place = "opening"
        self._match = Match("", "")
        self._stop = ""
        """The last character, if it may have ended a sentence."""
        self._before = False
        """Whether any character that comparisons do not ignore has been read."""
        self._held: list[str] = []
        self.held = 0
        """The number of buffered characters."""
        self.decided = False
        """Whether text passes unchanged from now on, because the reply denies nothing or `release` was called."""
        self.found: Denial | None = None
        """The denial that was found, if any. The buffered text must then not be shown, and any text fed later is
        dropped.
        """
        self.phrase = ""
        """The phrase that matched, as written in the file."""

    def feed(self, text: str) -> str:
        """Process text and return the text that may be shown now. If nothing is buffered, the very object `text` is
        returned.
        """
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
                self._record_denial()
            if self.found is not None:
                self.held = sum(map(len, self._held))
                return ""
        return ""

    def close(self) -> str:
        """End the reply, which may complete a phrase. Return the buffered text unless it is a denial."""
        if self.decided or self.found is not None:
            return ""
        if self._step(END) and self.found is not None:
            return ""
        return self.release()

    def release(self) -> str:
        """Stop buffering and return the buffered text, which is to be shown after all."""
        text = self._held[0] if len(self._held) == 1 else "".join(self._held)
        self._held.clear()
        self.held = 0
        self.decided = True
        return text

    def _folded(self, char: str) -> str:
        if char == "`" and not self._before:  # code at the beginning is a quotation; emphasis is ignored
            return char
        folded = fold(char)
        self._before = self._before or bool(folded.strip())
        return folded

    def _step(self, char: str) -> bool:
        """Process one folded character and return whether a denial is still possible."""
        if self._sentence is not None and self._place != "next sentence" and not self._sentence.feed(char):
            self._sentence = None
            if self._match is _OTHER_WORDS:
                return False
        if self._place == "opening":
            match = self._step_phrases(char)
            if match is None and self._sentence is not None and self._sentence.complete:
                match = _OTHER_WORDS
            if match is None:
                return self._node is not None or self._sentence is not None
            self._match = match
            self._place, self._node = "rest of the sentence", self._phrases.unless.start()
        if self._place == "rest of the sentence":
            return self._step_rest(char)
        return self._step_next(char)

    def _step_phrases(self, char: str) -> Match | None:
        """Compare a character with the phrases, and return the phrase that it completes, if any."""
        last, denied = self._node, self._phrases.denied
        if last is None:
            return None
        if last.asks and self._ends_topic(char):
            last = denied.step_topic(last)
        node = self._node = denied.step(last, char)
        if node is None or node.match is None or (not self._environment and node.match.label == ENVIRONMENT):
            return None
        return node.match

    def _ends_topic(self, char: str) -> bool:
        """Return whether a word ends before `char`, and is a topic of the request."""
        if self._topics is None:
            return False
        # Only a few characters of a denial get here, so they are folded again rather than stored for every reply.
        end = self.held if char == END else self.held - 1
        read = fold_text("".join(self._held)[max(0, end - 2 * LONGEST) : end])
        if kind_of(char) in _IN_WORD and char < UNSPACED and read[-1:] < UNSPACED:
            return False
        return self._topics.end(read)

    def _step_rest(self, char: str) -> bool:
        """Process a character in the rest of the sentence, after the phrase."""
        if self._stop and (kind_of(char) != WORD or self._stop != "."):  # ignore the dot in config.yaml
            return self._begin_next() and self._step_next(char)
        last, unless = self._node or self._phrases.unless.start(), self._phrases.unless
        if last.asks and self._ends_topic(char):
            last = unless.step_topic(last)
        node = unless.step(last, char)
        if node is None or node.match is not None:
            return False
        self._node = node
        self._stop = char if kind_of(char) == STOP else ""
        if char == END:
            return self._record_denial()
        return self._begin_next() if char == "。" or kind_of(char) == LINE else True

    def _begin_next(self) -> bool:
        self._place, self._node = "next sentence", self._phrases.unless_next.start()
        return True

    def _step_next(self, char: str) -> bool:
        """Process a character in the next sentence."""
        if kind_of(char) in (STOP, OTHER):  # "..." and a closing quote still belong to the previous sentence
            return True
        last, unless_next = self._node or self._phrases.unless_next.start(), self._phrases.unless_next
        if last.asks and self._ends_topic(char):
            last = unless_next.step_topic(last)
        node = unless_next.step(last, char)
        if node is not None and node.match is not None:
            return False
        if node is None or char == END:
            return self._record_denial()
        self._node = node
        return True

    def _record_denial(self) -> bool:
        """Record the denial."""
        self.found = cast("Denial", self._match.label)
        self.phrase = self._match.phrase
        return True
