"""Chat templates: a table of the markers around each turn in a prompt.

A turn consists of a prefix, the text and a suffix. The token at the beginning of a prompt (`<s>`, `<|begin_of_text|>`)
is not included, because the server adds it. Each row follows the template published by the model's authors.
"""

from collections.abc import Mapping
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


TEMPLATES: Final[Mapping[str, Template]] = MappingProxyType(
    {
        "chatml": Template(
            system=("<|im_start|>system\n", "<|im_end|>\n"),
            user=("<|im_start|>user\n", "<|im_end|>\n"),
            assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
            reply="<|im_start|>assistant\n",
            stop=("<|im_end|>", "<|im_start|>"),
        ),
        "llama2": Template(
            system=("<<SYS>>\n", "\n<</SYS>>\n\n"),
            inside=True,
            user=("[INST] ", " [/INST]"),
            assistant=(" ", " </s><s>"),
            reply="",
            stop=("</s>", "[INST]"),
        ),
        "llama3": Template(
            system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
            user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
            assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
            reply="<|start_header_id|>assistant<|end_header_id|>\n\n",
            stop=("<|eot_id|>", "<|start_header_id|>", "<|end_of_text|>"),
        ),
        "mistral": Template(
            inside=True,
            user=("[INST] ", " [/INST]"),
            assistant=(" ", "</s>"),
            reply="",
            stop=("</s>", "[INST]"),
        ),
        "gemma": Template(
            inside=True,
            user=("<start_of_turn>user\n", "<end_of_turn>\n"),
            assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
            reply="<start_of_turn>model\n",
            stop=("<end_of_turn>", "<start_of_turn>"),
        ),
        "phi3": Template(
            system=("<|system|>\n", "<|end|>\n"),
            user=("<|user|>\n", "<|end|>\n"),
            assistant=("<|assistant|>\n", "<|end|>\n"),
            reply="<|assistant|>\n",
            stop=("<|end|>", "<|user|>", "<|endoftext|>"),
        ),
        "zephyr": Template(
            system=("<|system|>\n", "</s>\n"),
            user=("<|user|>\n", "</s>\n"),
            assistant=("<|assistant|>\n", "</s>\n"),
            reply="<|assistant|>\n",
            stop=("</s>", "<|user|>"),
        ),
        "vicuna": Template(
            user=("USER: ", "\n"),
            assistant=("ASSISTANT: ", "</s>\n"),
            reply="ASSISTANT:",
            stop=("</s>", "\nUSER:"),
        ),
        "alpaca": Template(
            user=("### Instruction:\n", "\n\n"),
            assistant=("### Response:\n", "\n\n"),
            reply="### Response:\n",
            stop=("\n### Instruction:", "</s>"),
        ),
        "deepseek": Template(
            user=("<｜User｜>", ""),
            assistant=("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
            reply="<｜Assistant｜>",
            stop=("<｜end▁of▁sentence｜>", "<｜User｜>"),
        ),
        "plain": Template(
            user=("User: ", "\n\n"),
            assistant=("Assistant: ", "\n\n"),
            reply="Assistant:",
            stop=("\nUser:",),
        ),
    }
)
