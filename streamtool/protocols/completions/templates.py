"""Chat templates: a table of the markers around each turn in a prompt.

A turn consists of a prefix, the text and a suffix. The token at the beginning of a prompt (`<s>`, `<|begin_of_text|>`)
is not included, because the server adds it. Each row follows the template published by the model's authors.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from attrs import frozen

Marks = tuple[str, str]


@frozen
class Template:
    """Turn markers of one model family."""

    user: Marks
    """Text before and after a user message."""
    assistant: Marks
    reply: str
    """End of the prompt; the model continues from here."""
    stop: tuple[str, ...]
    """Sequences that end the model's turn; at most three, because some servers accept only four in total."""
    system: Marks = ("", "\n\n")
    inside: bool = False
    """Whether the system text, with its markers, is put at the start of the next user turn instead of into its own
    turn.
    """
    special: tuple[str, ...] = ()
    """Further special tokens of the family's tokenizer that begin or end a prompt or a turn."""


_SENTENCE: Final = ("<s>", "</s>")

TEMPLATES: Final[Mapping[str, Template]] = MappingProxyType(
    {
        "chatml": Template(
            special=("<|endoftext|>",),
            system=("<|im_start|>system\n", "<|im_end|>\n"),
            user=("<|im_start|>user\n", "<|im_end|>\n"),
            assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
            reply="<|im_start|>assistant\n",
            stop=("<|im_end|>", "<|im_start|>"),
        ),
        "llama2": Template(
            special=_SENTENCE,
            system=("<<SYS>>\n", "\n<</SYS>>\n\n"),
            inside=True,
            user=("[INST] ", " [/INST]"),
            assistant=(" ", " </s><s>"),
            reply="",
            stop=("</s>", "[INST]"),
        ),
        "llama3": Template(
            special=("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>"),
            system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
            user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
            assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
            reply="<|start_header_id|>assistant<|end_header_id|>\n\n",
            stop=("<|eot_id|>", "<|start_header_id|>", "<|end_of_text|>"),
        ),
        "mistral": Template(
            special=_SENTENCE,
            inside=True,
            user=("[INST] ", " [/INST]"),
            assistant=(" ", "</s>"),
            reply="",
            stop=("</s>", "[INST]"),
        ),
        "gemma": Template(
            special=("<bos>", "<eos>"),
            inside=True,
            user=("<start_of_turn>user\n", "<end_of_turn>\n"),
            assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
            reply="<start_of_turn>model\n",
            stop=("<end_of_turn>", "<start_of_turn>"),
        ),
        "phi3": Template(
            special=("<|endoftext|>", *_SENTENCE),
            system=("<|system|>\n", "<|end|>\n"),
            user=("<|user|>\n", "<|end|>\n"),
            assistant=("<|assistant|>\n", "<|end|>\n"),
            reply="<|assistant|>\n",
            stop=("<|end|>", "<|user|>", "<|endoftext|>"),
        ),
        "zephyr": Template(
            special=_SENTENCE,
            system=("<|system|>\n", "</s>\n"),
            user=("<|user|>\n", "</s>\n"),
            assistant=("<|assistant|>\n", "</s>\n"),
            reply="<|assistant|>\n",
            stop=("</s>", "<|user|>"),
        ),
        "vicuna": Template(
            special=_SENTENCE,
            user=("USER: ", "\n"),
            assistant=("ASSISTANT: ", "</s>\n"),
            reply="ASSISTANT:",
            stop=("</s>", "\nUSER:"),
        ),
        "alpaca": Template(
            special=_SENTENCE,
            user=("### Instruction:\n", "\n\n"),
            assistant=("### Response:\n", "\n\n"),
            reply="### Response:\n",
            stop=("\n### Instruction:", "</s>"),
        ),
        "deepseek": Template(
            special=("<｜begin▁of▁sentence｜>",),
            user=("<｜User｜>", ""),
            assistant=("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
            reply="<｜Assistant｜>",
            stop=("<｜end▁of▁sentence｜>", "<｜User｜>"),
        ),
        "plain": Template(
            special=_SENTENCE,
            user=("User: ", "\n\n"),
            assistant=("Assistant: ", "\n\n"),
            reply="Assistant:",
            stop=("\nUser:",),
        ),
    }
)

_BRACKETED: Final = re.compile(r"<<?/?[A-Z]+>>|<[^<>\s]+>|\[/?[A-Z_]+\]")
"""Matches markers that are special tokens, or that tokenizers and servers treat as such."""


def _marks(template: Template) -> list[str]:
    turns = (template.user, template.assistant, template.system)
    return [template.reply, *template.stop, *template.special, *(mark for turn in turns for mark in turn)]


@lru_cache(maxsize=32)
def special_tokens(template: Template) -> re.Pattern[str]:
    """Return a pattern for the first character of the template's special tokens, possibly with backslashes after it."""
    tokens = sorted({token for mark in _marks(template) for token in _BRACKETED.findall(mark)})
    by_first: dict[str, list[str]] = {}
    for token in tokens:
        by_first.setdefault(token[0], []).append(re.escape(token[1:]))
    return re.compile(
        "|".join(rf"{re.escape(first)}(?=\\*(?:{'|'.join(rest)}))" for first, rest in by_first.items()) or r"(?!)"
    )


@lru_cache(maxsize=32)
def role_lines(template: Template) -> re.Pattern[str] | None:
    """Return a pattern for the beginning of lines that begin a turn with ordinary words (`USER:`), or None if the
    template has no such lines.
    """
    marks = {mark.strip() for mark in _marks(template) if not _BRACKETED.search(mark)} - {""}
    if not marks:
        return None
    return re.compile(rf"^(?=\\*[ \t]*(?:{'|'.join(map(re.escape, sorted(marks)))}))", re.IGNORECASE | re.MULTILINE)


def escape_marks(text: str, marks: re.Pattern[str]) -> str:
    """Return the text with a backslash after each match, in addition to any that follow it already."""
    return marks.sub(lambda mark: mark[0] + "\\", text)  # a function lets other threads run in between
