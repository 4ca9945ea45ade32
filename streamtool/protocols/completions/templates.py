"""The chat templates: how turns are marked in a prompt. A table of data.

A turn is a prefix, the text, a suffix. The token that begins a prompt (`<s>`, `<|begin_of_text|>`) is not here: the
server adds it. Each row follows the template that the models' makers publish.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

Marks = tuple[str, str]


@frozen
class Template:
    """How one family of models marks turns."""

    user: Marks
    """What stands before and behind what the user says."""
    assistant: Marks
    reply: str
    """What the prompt ends with, so that the model speaks next."""
    stop: tuple[str, ...]
    """What ends the model's turn; at most three, since some servers take four in all."""
    system: Marks = ("", "\n\n")
    inside: bool = False
    """There is no turn of the system: what it says, with its marks, begins the next turn of the user."""


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
