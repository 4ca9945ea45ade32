"""An automaton for the phrases. It determines whether a phrase has matched the text so far, or may still match.

An `Nfa` is a nondeterministic automaton whose edges are characters and kinds of characters. An `Automaton` simulates it
deterministically and creates nodes on demand: a node is the set of NFA states that the text so far can lead to. A step
is therefore a single lookup, no matter how much text has been read. A step to None means that no phrase can match any
more.
"""

from collections import defaultdict
from collections.abc import Iterable

from attrs import frozen

from streamtool.refusals.characters import OFFERED, TOPIC, kind_of

NODES = 20_000
"""Maximum number of cached nodes; when it is exceeded, the cache is cleared."""


@frozen
class Match:
    """The meaning of a matched phrase."""

    label: str
    phrase: str
    """The phrase as written in the file, with its language; for the log."""


class Nfa:
    """A nondeterministic automaton. A state is a number."""

    __slots__ = ("alphabet", "chain", "chars", "epsilon", "kinds", "matches", "spaced", "unspaced")

    def __init__(self) -> None:
        self.chain: list[str] = []
        """For each state, the character that leads to the next state (its number plus one), or an empty string.

        Most states are inside a word and have no other edge.
        """
        self.epsilon: defaultdict[int, list[int]] = defaultdict(list)
        """For each state, the states that can be reached without reading a character."""
        self.chars: dict[int, int] = {}
        """The target of every other edge, keyed by state and character; one flat dict, since most states have a single
        edge.
        """
        self.alphabet: set[str] = set()
        self.kinds: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        """For each state, pairs of kinds of characters and the state that these kinds lead to."""
        self.matches: dict[int, Match] = {}
        self.spaced: list[int] = []
        """Start states for phrases in languages with spaces between words."""
        self.unspaced: list[int] = []
        """Start states for the other phrases."""

    @property
    def size(self) -> int:
        """The number of states."""
        return len(self.chain)

    def add_state(self) -> int:
        """Add a state and return its number."""
        self.chain.append("")
        return len(self.chain) - 1

    def add_word(self, letters: str) -> tuple[int, int]:
        """Add a chain of new states for these characters; return the first state and the last one."""
        # `chain` makes the common edge implicit: state i leads to i + 1. A word costs one string per letter and no dict
        # entry, which matters with hundreds of thousands of states.
        first = len(self.chain)
        self.chain += letters
        self.alphabet.update(letters)
        return first, self.add_state()

    def add_edge(self, source: int, char: str, target: int) -> None:
        """Add an edge from `source` to `target` for a character."""
        self.alphabet.add(char)
        # 21 bits hold every code point (at most 0x10FFFF), so a state and a character pack into one int without
        # collisions.
        edge = source << 21 | ord(char)
        known = self.chars.get(edge)
        # A dict can only hold one target per edge. If there is a second target, the edge leads to a fork: a state from
        # which both targets are reached without reading a character.
        if known is not None:
            fork = self.add_state()
            self.epsilon[fork] += (known, target)
            target = fork
        self.chars[edge] = target

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """Return these states and all states that can be reached from them without reading a character."""
        seen = set(states)
        todo = list(seen)
        while todo:
            for further in self.epsilon.get(todo.pop(), ()):
                if further not in seen:
                    seen.add(further)
                    todo.append(further)
        return frozenset(seen)


class PhraseNode:
    """A set of NFA states, and the match that it contains, if any."""

    __slots__ = ("asks", "match", "next", "states")

    def __init__(self, states: frozenset[int], match: Match | None, *, asks: bool) -> None:
        self.states = states
        self.match = match
        self.asks = asks
        """Whether it matters if a word that ends here is a topic."""
        self.next: dict[str, PhraseNode | None] = {}


class Automaton:
    """A deterministic simulation of an NFA.

    Phrases may begin after characters of the kinds in `anywhere` (`anywhere_unspaced` for languages without spaces
    between words). If these are empty, a phrase may only begin where the walk begins.
    """

    __slots__ = ("_alphabet", "_begin", "_begin_unspaced", "_net", "_nodes", "_restart", "_restart_unspaced", "_start")

    def __init__(self, net: Nfa, anywhere: str = "", anywhere_unspaced: str = "") -> None:
        self._net = net
        self._restart = anywhere
        self._restart_unspaced = anywhere_unspaced
        self._begin = net.closure(net.spaced)
        self._start = self._begin | net.closure(net.unspaced)
        self._begin_unspaced = net.closure(net.unspaced)
        self._alphabet = frozenset(net.alphabet)
        self._nodes: dict[frozenset[int], PhraseNode] = {}

    def prepare(self, letters: str) -> None:
        """Create the nodes that a walk reaches with each of these first letters. They are the largest sets, and each of
        them takes as long as all further steps of a walk.
        """
        start = self.start()
        for letter in letters:
            self.step(start, letter)

    def start(self) -> PhraseNode:
        """Return the node where a walk begins."""
        return self._node(self._start)

    def step(self, node: PhraseNode, char: str) -> PhraseNode | None:
        """Return the node that a folded character leads to, or None if no phrase can match any more."""
        # All characters that occur in no phrase lead to the same node if they are of the same kind. Caching them by
        # kind keeps `next` small for arbitrary text. A kind is a capital letter, and folded text contains none, so the
        # keys cannot collide.
        key = char if char in self._alphabet else kind_of(char)
        try:
            return node.next[key]
        except KeyError:
            states = self._reached(node.states, char)
            # The empty set is a dead end, unless phrases may begin later in the text; in that case it is an ordinary
            # node.
            found = node.next[key] = self._node(states) if states or self._restart else None
            return found

    def first_match(self, text: str) -> tuple[Match, int] | None:
        """Return the first match in folded text, and the index of its last character. Return None if no phrase
        matches.
        """
        node, alphabet = self.start(), self._alphabet
        for place, char in enumerate(text):
            # As in `step`, which is needed only for a node that is not cached, or for None.
            step = node.next.get(char if char in alphabet else kind_of(char)) or self.step(node, char)
            if step is None:
                return None
            if step.match is not None:
                return step.match, place
            node = step
        return None

    def step_topic(self, node: PhraseNode) -> PhraseNode:
        """Return the node that follows `node` if the last word is a topic of the request."""
        found = node.next.get(TOPIC)
        if found is None:
            found = node.next[TOPIC] = self._node(node.states | self._reached(node.states, TOPIC))
        return found

    def _reached(self, states: frozenset[int], char: str) -> frozenset[int]:
        net, of_kind = self._net, kind_of(char)
        reached: set[int] = set()
        for state in states:
            if net.chain[state] == char:
                reached.add(state + 1)
            to = net.chars.get(state << 21 | ord(char))
            if to is not None:
                reached.add(to)
            if state in net.kinds:
                reached.update(further for kinds, further in net.kinds[state] if of_kind in kinds)
        found = net.closure(reached)
        if of_kind in self._restart:
            found |= self._begin
        if of_kind in self._restart_unspaced:
            found |= self._begin_unspaced
        return found

    def _node(self, states: frozenset[int]) -> PhraseNode:
        if states not in self._nodes:
            # The text comes from the model, so the number of cached nodes must be bounded. Nodes that are still
            # referenced remain usable after the cache is cleared; they are just not shared with nodes created later.
            if len(self._nodes) >= NODES:
                self._nodes.clear()
            # If several phrases match here, the one that was added first wins, regardless of the set's iteration order.
            net = self._net
            matches = sorted(state for state in states if state in net.matches)
            match = net.matches[matches[0]] if matches else None
            asks = any(kinds == OFFERED for state in states for kinds, _ in net.kinds.get(state, ()))
            self._nodes[states] = PhraseNode(states, match, asks=asks)
        return self._nodes[states]
