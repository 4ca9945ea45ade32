"""Engines that enforce a constraint, and random sentences that they allow.

Each engine gets a vocabulary of single bytes, so the tokens it allows next are a set of bytes, and a sentence is a
random walk over these sets. No code is shared with the code that makes constraints.
"""

import json
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

END = 256
"""Token that ends a sentence."""
CLOSING = b'"]}0'
"""Bytes that end a long JSON text, best ones first."""
MARKS = b'"{}[],:<>/'
PLAIN = frozenset(range(0x20, 0x7F)) | {0x0A}


class Refused(Exception):
    """The engine rejects the constraint."""


class Matcher(Protocol):
    """An engine's state for one sentence."""

    def allowed(self) -> Collection[int]:
        """Return the bytes that may follow, and `END`."""

    def take(self, token: int) -> None: ...


def sentence(
    matcher: Matcher, choose: random.Random, closers: Sequence[str] = (), *, size: int = 120, most: int = 1200
) -> str | None:
    """Return a random sentence, or None if it did not end within `most` bytes.

    Beyond `size` bytes the walk heads for the end, in free text by one of the closers.
    """
    out = bytearray()
    planned = b""
    while len(out) < most:
        allowed = matcher.allowed()
        assert allowed, f"nothing may follow {out!r}"
        hasty = len(out) > size
        if hasty and not planned and closers and choose.random() < 0.3:
            planned = choose.choice(closers).encode()
        if planned and planned[0] in allowed:
            token = planned[0]
        else:
            planned = b""
            token = _chosen(allowed, choose, hasty=hasty)
        planned = planned[1:]
        if token == END:
            return out.decode(errors="replace")
        out.append(token)
        matcher.take(token)
    return None


def _chosen(allowed: Collection[int], choose: random.Random, *, hasty: bool) -> int:
    if END in allowed and (hasty or len(allowed) == 1 or choose.random() < 0.5):
        return END
    if hasty and choose.random() < 0.6:
        closing = next((token for token in CLOSING if token in allowed), None)
        if closing is not None:
            return closing
    rest = [token for token in allowed if token != END]
    plain = [token for token in rest if token in PLAIN]
    marks = [token for token in plain if token in MARKS]
    if marks and choose.random() < 0.3:
        return choose.choice(marks)
    return choose.choice(plain if plain and choose.random() < 0.97 else rest)


class Xgrammar:
    """The engine used by vLLM and SGLang."""

    def __init__(self) -> None:
        import xgrammar

        self._library = xgrammar
        vocabulary = [bytes([byte]) for byte in range(256)] + [b"</s>"]
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[END])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def schema(self, schema: Any) -> Any:
        return self._made(self._compiler.compile_json_schema, json.dumps(schema))

    def grammar(self, text: str) -> Any:
        return self._made(self._compiler.compile_grammar, text)

    def structural_tag(self, tag: Any) -> Any:
        return self._made(self._compiler.compile_structural_tag, json.dumps(tag))

    def _made(self, make: Any, value: str) -> Any:
        try:
            return make(value)
        except RuntimeError as error:
            raise Refused(str(error)) from None

    def matcher(self, compiled: Any) -> Matcher:
        return _XgrammarMatcher(self._library, compiled)


class _XgrammarMatcher:
    def __init__(self, library: Any, compiled: Any) -> None:
        self._matcher = library.GrammarMatcher(compiled)
        self._mask = library.allocate_token_bitmask(1, 257)

    def allowed(self) -> Collection[int]:
        self._matcher.fill_next_token_bitmask(self._mask)
        return list(_bits([word & 0xFFFFFFFF for word in self._mask[0].tolist()], 32))

    def take(self, token: int) -> None:
        assert self._matcher.accept_token(token)


class Llguidance:
    """The engine that vLLM, SGLang and llama.cpp can be built with."""

    def __init__(self) -> None:
        import llguidance

        self._library = llguidance
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257, slices=[])

    def schema(self, schema: Any) -> Any:
        return self._made(self._library.LLMatcher.grammar_from_json_schema(json.dumps(schema)))

    def grammar(self, text: str) -> Any:
        return self._made(self._library.grammar_from("gbnf", text))

    def _made(self, grammar: str) -> Any:
        matcher = self._library.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return matcher

    def matcher(self, compiled: Any) -> Matcher:
        return _LlguidanceMatcher(compiled.deep_copy())


class _Bytes:
    """A tokenizer whose tokens are single bytes."""

    def __init__(self) -> None:
        self.eos_token_id = END
        self.bos_token_id = None
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"</s>"]
        self.special_token_ids = [END]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


class _LlguidanceMatcher:
    _known: ClassVar[dict[bytes, list[int]]] = {}
    """The bytes that a mask allows. Few masks differ."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self) -> Collection[int]:
        if self._matcher.is_stopped():
            return [END]
        mask = self._matcher.compute_bitmask()
        if mask not in self._known:
            self._known[mask] = list(_bits(mask, 8))
        return self._known[mask]

    def take(self, token: int) -> None:
        assert self._matcher.consume_token(token), self._matcher.get_error()


def _bits(words: Iterable[int], width: int) -> Iterator[int]:
    for i, word in enumerate(words):
        if word:
            yield from (at for bit in range(width) if word >> bit & 1 and (at := i * width + bit) <= END)
