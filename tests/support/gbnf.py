"""A reader of GBNF grammars that generates random sentences. It shares no code with the writer of the grammars."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

ALPHABET = 'ab Z09é"\\\n<>{}[]/=:,_-|`\U0001f321'
"""Alphabet for classes that allow nearly all characters."""
_NAMED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "]": "]", "[": "["}

MANY = 10**6
Node = tuple[Any, ...]
"""("text", str) | ("one of", set, negated) | ("rule", name) | ("all", nodes) | ("any", nodes) | ("times", node, m, n)."""


class Grammar:
    """The rules, and the depth of each rule's shallowest sentence."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, Node] = {}
        for line in text.splitlines():
            name, arrow, body = line.partition(" ::= ")
            assert arrow, line
            assert re.fullmatch(r"[a-z][a-z0-9-]*", name), name
            assert name not in self.rules, name
            reader = _Reader(body)
            self.rules[name] = reader.choice()
            assert not reader.rest(), (name, reader.rest())
        self.depths = dict.fromkeys(self.rules, 10**6)
        changed = True
        while changed:
            changed = False
            for name, node in self.rules.items():
                depth = 1 + self.depth(node)
                if depth < self.depths[name]:
                    self.depths[name], changed = depth, True
        assert max(self.depths.values()) < 10**6, "a rule has no sentence"
        self.never_begins_with_itself()

    def depth(self, node: Node) -> int:
        match node:
            case ("rule", name):
                return self.depths[name]
            case ("all", nodes):
                return max(map(self.depth, nodes), default=0)
            case ("any", nodes):
                return min(map(self.depth, nodes))
            case ("times", inner, least, _):
                return self.depth(inner) if least else 0
        return 0

    def never_begins_with_itself(self) -> None:
        """Check for left recursion, which the server rejects."""
        firsts = {name: self.first(node)[0] for name, node in self.rules.items()}
        for name, first in firsts.items():
            seen: set[str] = set()
            open_ = set(first)
            while open_:
                seen |= open_
                open_ = {new for old in open_ for new in firsts[old]} - seen
            assert name not in seen, f"{name} is left-recursive"

    def first(self, node: Node) -> tuple[set[str], bool]:
        """Return the rules that a node may begin with, and whether it may be empty (rules themselves count as
        non-empty).
        """
        match node:
            case ("rule", name):
                return {name}, False
            case ("all", nodes):
                found: set[str] = set()
                for one in nodes:
                    names, empty = self.first(one)
                    found |= names
                    if not empty:
                        return found, False
                return found, True
            case ("any", nodes):
                pairs = [self.first(one) for one in nodes]
                return set().union(*(names for names, _ in pairs)), any(empty for _, empty in pairs)
            case ("times", inner, least, _):
                names, empty = self.first(inner)
                return names, empty or not least
            case ("text", text):
                return set(), not text
        return set(), False

    def accepts(self, text: str) -> bool:
        """Return whether this is a sentence. Possible continuations are kept as stacks of nodes, as in the server."""
        stacks = self.opened({(("rule", "root"),)})
        for char in text:
            stacks = self.opened({stack[:-1] for stack in stacks if stack and self.takes(stack[-1], char)})
        return () in stacks

    def takes(self, node: Node, char: str) -> bool:
        return node[1] == char if node[0] == "text" else (char in node[1]) != node[2]

    def opened(self, stacks: set[tuple[Node, ...]]) -> set[tuple[Node, ...]]:
        """Expand the stacks until each has a character on top."""
        done: set[tuple[Node, ...]] = set()
        seen = set(stacks)
        waiting = list(stacks)
        while waiting:
            stack = waiting.pop()
            if not stack or stack[-1][0] == "one of" or (stack[-1][0] == "text" and len(stack[-1][1]) == 1):
                done.add(stack)
                continue
            *rest, top = stack
            for way in self.steps(top):
                new = (*rest, *reversed(way))
                if new not in seen:
                    seen.add(new)
                    waiting.append(new)
        return done

    def steps(self, node: Node) -> list[tuple[Node, ...]]:
        match node:
            case ("text", text):
                return [tuple(("text", char) for char in text)]
            case ("rule", name):
                return [(self.rules[name],)]
            case ("all", nodes):
                return [tuple(nodes)]
            case ("any", nodes):
                return [(one,) for one in nodes]
            case ("times", inner, least, most):
                again = ("times", inner, max(least - 1, 0), most if most == MANY else most - 1)
                more = [(inner, again)] if most else []
                return more if least else [(), *more]
        raise AssertionError(node)

    def sentence(self, choose: Callable[[int], int], size: int = 400, rule: str = "root") -> str:
        """Return a random sentence; `choose(n)` gives a number from 0 to n - 1. Beyond `size` steps it ends soon."""
        out: list[str] = []
        stack: list[Node] = [("rule", rule)]
        while stack:
            size -= 1
            node = stack.pop()
            match node:
                case ("text", text):
                    out.append(text)
                case ("one of", chars, True):
                    allowed = [char for char in ALPHABET if char not in chars]
                    out.append(allowed[choose(len(allowed))])
                case ("one of", chars, False):
                    listed = sorted(chars)
                    out.append(listed[choose(len(listed))])
                case ("rule", name):
                    stack.append(self.rules[name])
                case ("all", nodes):
                    stack.extend(reversed(nodes))
                case ("any", nodes):
                    ways = sorted(nodes, key=self.depth)[:1] if size < 0 else nodes
                    stack.append(ways[choose(len(ways))])
                case ("times", inner, least, most):
                    top = least if size < 0 else min(most, least + 4)
                    stack.extend([inner] * (least + choose(top - least + 1)))
        return "".join(out)


grammar = lru_cache(Grammar)
"""Reads a grammar, or returns the one that it has made of the same text: to read it takes longer than a sentence."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def rest(self) -> str:
        return self.text[self.at :].strip()

    def skip(self) -> str:
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def choice(self) -> Node:
        ways = [self.sequence()]
        while self.skip() == "|":
            self.at += 1
            ways.append(self.sequence())
        return ways[0] if len(ways) == 1 else ("any", tuple(ways))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while (sign := self.skip()) and sign not in "|)":
            parts.append(self.repeated(self.element(sign)))
        assert parts, f"an empty alternative in {self.text!r}"
        return ("all", tuple(parts))

    def element(self, sign: str) -> Node:
        if sign == '"':
            return ("text", self.quoted())
        if sign == "[":
            return self.char_class()
        if sign == "(":
            self.at += 1
            inner = self.choice()
            assert self.skip() == ")", self.text
            self.at += 1
            return inner
        found = re.compile(r"[a-z][a-z0-9-]*").match(self.text, self.at)
        assert found, self.rest()
        self.at = found.end()
        return ("rule", found[0])

    def repeated(self, node: Node) -> Node:
        found = re.compile(r"[*+?]|\{(\d+)(,?)(\d*)\}").match(self.text, self.at)
        if not found:
            return node
        self.at = found.end()
        if found[1] is None:
            least, most = {"*": (0, MANY), "+": (1, MANY), "?": (0, 1)}[found[0]]
        else:
            least = int(found[1])
            most = int(found[3]) if found[3] else MANY if found[2] else least
        return ("times", node, least, most)

    def char(self) -> str:
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return char
        char = self.text[self.at]
        self.at += 1
        if char == "x":
            self.at += 2
            return chr(int(self.text[self.at - 2 : self.at], 16))
        return _NAMED[char]

    def quoted(self) -> str:
        self.at += 1
        out = []
        while self.text[self.at] != '"':
            out.append(self.char())
        self.at += 1
        return "".join(out)

    def char_class(self) -> Node:
        self.at += 1
        negated = self.text[self.at] == "^"
        self.at += negated
        chars: set[str] = set()
        while self.text[self.at] != "]":
            first = self.char()
            last = first
            if self.text[self.at] == "-" and self.text[self.at + 1] != "]":
                self.at += 1
                last = self.char()
            chars.update(map(chr, range(ord(first), ord(last) + 1)))
        self.at += 1
        return ("one of", frozenset(chars), negated)
