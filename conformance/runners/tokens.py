"""Text as it leaves a tokenizer: special tokens are never split."""

import re
from collections.abc import Iterable, Iterator

MARKERS = (
    *("<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>", "<think>", "</think>", "<|tool_call|>"),
    *("<|tool_calls|>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|action_start|>", "<|action_end|>", "<|plugin|>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|tool_calls_section_begin|>"),
    *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<start_function_call>"),
    *("<end_function_call>", "<escape>", "<minimax:tool_call>", "</minimax:tool_call>", "<seed:tool_call>"),
    *("</seed:tool_call>", "<seed:think>", "</seed:think>", "<longcat_tool_call>", "</longcat_tool_call>"),
    *("<|tool_call>", "<tool_call|>", "<|tools_prefix|>", "<|tools_suffix|>", "<｜tool_calls_begin｜>"),
    *("<｜tool_calls_end｜>", "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>", "<|im_end|>"),
)
"""Tokens that a parser may require when it is created, whether or not they occur in the text."""
SPECIAL = re.compile(
    rf"{'|'.join(map(re.escape, MARKERS))}|<[|｜][^<>\n]{{1,60}}?[|｜]>|\[(?:/?TOOL_CALLS|CALL_ID|/?THINK|unused\d+)\]"
)
"""Special tokens used by known models."""
PLAIN = 1_000_000
"""Smallest token number for a piece of text that is not a special token."""


def special_tokens(text: str) -> list[str]:
    """Return the distinct special tokens in the text."""
    return list(dict.fromkeys(SPECIAL.findall(text)))


def pieces_of(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text split at the same positions as `pieces`, except inside special tokens."""
    text, cuts = "", set()
    for piece in pieces:
        text += piece
        cuts.add(len(text))
    for found in SPECIAL.finditer(text):
        cuts -= set(range(found.start() + 1, found.end()))
        cuts |= {found.start(), found.end()}
    at = 0
    for cut in sorted(cuts | {len(text)}):
        if cut > at:
            yield text[at:cut]
            at = cut


class Tokenizer:
    """The tokenizer interface that parsers use, for one text: each special token is a token, and so is every other
    piece.
    """

    def __init__(self, text: str) -> None:
        self._vocab = {token: number for number, token in enumerate(special_tokens(text), 1)}
        for token in MARKERS:
            self._vocab.setdefault(token, len(self._vocab) + 1)
        self._texts = {number: token for token, number in self._vocab.items()}
        self.vocab = self._vocab
        self.all_special_tokens = list(self._vocab)
        self.all_special_ids = list(self._vocab.values())
        self.eos_token_id = 0
        self.bos_token_id = 0
        self.eos_token = self.bos_token = ""

    def get_vocab(self):
        """Return the special tokens and their numbers."""
        return self._vocab

    def encode(self, text: str, **_):
        """Return the numbers of the tokens in the text."""
        found = []
        for piece in pieces_of([text]):
            number = self._vocab.get(piece)
            if number is None:
                number = PLAIN + len(self._texts)
                self._texts[number] = piece
            found.append(number)
        return found

    def decode(self, numbers, **_):
        """Return the text of the tokens with these numbers."""
        return "".join(self._texts.get(number, "") for number in ([numbers] if isinstance(numbers, int) else numbers))

    def convert_tokens_to_ids(self, tokens):
        """Return the numbers of these tokens."""
        return self._vocab.get(tokens) if isinstance(tokens, str) else [self._vocab.get(token) for token in tokens]

    def convert_ids_to_tokens(self, numbers, **_):
        """Return the tokens with these numbers."""
        return [self._texts.get(number, "") for number in numbers]
