"""The automaton behind the phrases: which of them a text has matched, or may still match.

A `Net` is a nondeterministic automaton whose edges are characters and kinds of characters. An `Automaton` walks it
deterministically, and makes the nodes that it visits as they are needed: a node is the set of places in which the
phrases can be. So a step is one lookup, and no step depends on what came before. A node without any place is None:
nothing of what is looked for can come any more.
"""

from collections import defaultdict
from collections.abc import Iterable

from attrs import frozen

from streamtool.policy.refusals.characters import kind

NODES = 20_000
"""So many nodes are remembered; then remembering begins anew."""


@frozen
class Match:
    """What a phrase stands for."""

    label: str
    phrase: str
    """The phrase as it is written in the file, with its language; for the log."""


class Net:
    """A nondeterministic automaton. A state is a number."""

    __slots__ = ("alphabet", "chain", "chars", "free", "kinds", "matches", "spaced", "unspaced")

    def __init__(self) -> None:
        self.chain: list[str] = []
        """State -> the character that leads to the state behind it, or none: most states stand inside of a word."""
        self.free: defaultdict[int, list[int]] = defaultdict(list)
        """State -> states that are reached without a character."""
        self.chars: dict[int, int] = {}
        """State and character -> state, for all other characters; one flat table, since most states have one edge."""
        self.alphabet: set[str] = set()
        self.kinds: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        """State -> kinds of characters, and the state to which each of them leads."""
        self.matches: dict[int, Match] = {}
        self.spaced: list[int] = []
        """Where phrases of languages with spaces between words begin."""
        self.unspaced: list[int] = []
        """Where the others begin."""

    @property
    def size(self) -> int:
        """How many states there are."""
        return len(self.chain)

    def state(self) -> int:
        """A new state."""
        self.chain.append("")
        return len(self.chain) - 1

    def spelled(self, letters: str) -> tuple[int, int]:
        """New states that these characters join. Returns the first and the last."""
        first = len(self.chain)
        self.chain += letters
        self.alphabet.update(letters)
        return first, self.state()

    def char(self, source: int, char: str, target: int) -> None:
        """A character that leads from `source` to `target`."""
        self.alphabet.add(char)
        edge = source << 21 | ord(char)
        known = self.chars.get(edge)
        if known is not None:
            fork = self.state()
            self.free[fork] += (known, target)
            target = fork
        self.chars[edge] = target

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """The states and all that are reached from them without a character."""
        seen = set(states)
        todo = list(seen)
        while todo:
            for further in self.free.get(todo.pop(), ()):
                if further not in seen:
                    seen.add(further)
                    todo.append(further)
        return frozenset(seen)


class PhraseNode:
    """A set of states of the net, and what is matched there."""

    __slots__ = ("match", "next", "states")

    def __init__(self, states: frozenset[int], match: Match | None) -> None:
        self.states = states
        self.match = match
        self.next: dict[str, PhraseNode | None] = {}


class Automaton:
    """Walks a net. `anywhere` and `anywhere_unspaced` are the kinds of characters after which phrases may begin.

    Without them a phrase begins where the walk does.
    """

    __slots__ = ("_alphabet", "_begin", "_begin_unspaced", "_net", "_nodes", "_restart", "_restart_unspaced")

    def __init__(self, net: Net, anywhere: str = "", anywhere_unspaced: str = "") -> None:
        self._net = net
        self._restart = anywhere
        self._restart_unspaced = anywhere_unspaced
        self._begin = net.closure(net.spaced)
        self._begin_unspaced = net.closure(net.unspaced)
        self._alphabet = frozenset(net.alphabet)
        self._nodes: dict[frozenset[int], PhraseNode] = {}

    def start(self) -> PhraseNode:
        """Where a walk begins."""
        return self._node(self._begin | self._begin_unspaced)

    def step(self, node: PhraseNode, char: str) -> PhraseNode | None:
        """Where a folded character leads."""
        key = char if char in self._alphabet else kind(char)
        try:
            return node.next[key]
        except KeyError:
            states = self._reached(node.states, char)
            found = node.next[key] = self._node(states) if states or self._restart else None
            return found

    def _reached(self, states: frozenset[int], char: str) -> frozenset[int]:
        net, of_kind = self._net, kind(char)
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
            if len(self._nodes) >= NODES:
                self._nodes.clear()
            matches = sorted(state for state in states if state in self._net.matches)
            match = self._net.matches[matches[0]] if matches else None
            self._nodes[states] = PhraseNode(states, match)
        return self._nodes[states]
