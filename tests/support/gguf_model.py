"""A random llama model of a few hundred KB that llama.cpp loads: the same bytes in each run, without training.

Its tokens are the 256 bytes and the special tokens of ChatML, so the same text always has the same tokens, and a cache
holds exactly the model's output. It writes noise, but text: the first number of each embedding passes through the model
unchanged, and the output layer uses it as a bias. So printable ASCII is likely, everything else is rare, and the reply
ends only where a grammar allows nothing else. The request therefore determines the length of a reply.

The fields are those of GGUF's `llama` architecture and of the `gpt2` tokenizer (byte-level BPE).
"""

from pathlib import Path
from typing import Final

import gguf
import numpy as np

CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT: Final = 65536
"""Context length in tokens; one token is one byte."""
CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WIDTH: Final = 32
_HEADS: Final = 2
_FORWARD: Final = 64
_BIAS: Final = 8.0
"""First number of each embedding, whose square is large compared to the others'."""
_LIKELY: Final = 0.5
_UNLIKELY: Final = -2.0
_NEVER: Final = -8.0


def write_model(path: Path) -> None:
    """Write the model to `path`."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("noise")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    letters = _byte_letters()
    words = [*letters, letters[0] * 2]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*words, *CONTROL])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words) + [gguf.TokenType.CONTROL] * len(CONTROL))
    writer.add_token_merges([f"{letters[0]} {letters[0]}"])  # llama.cpp requires one; these bytes occur in no text
    writer.add_bos_token_id(len(words))
    writer.add_eos_token_id(len(words) + CONTROL.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)
    for name, values in _tensors(len(words) + len(CONTROL)).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(tokens: int) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)

    def random(rows: int, columns: int, size: float = 0.1) -> np.ndarray:
        return (size * chance.standard_normal((rows, columns))).astype(np.float32)

    embedding, output = random(tokens, _WIDTH, 1.0), random(tokens, _WIDTH)
    embedding[:, 0] = _BIAS
    output[:, 0] = [_bias(token) for token in range(tokens)]
    tensors = {"token_embd": embedding, "output": output, "output_norm": np.ones(_WIDTH, np.float32)}
    tensors |= {f"blk.0.{name}_norm": np.ones(_WIDTH, np.float32) for name in ("attn", "ffn")}
    tensors |= {f"blk.0.attn_{name}": random(_WIDTH, _WIDTH) for name in ("q", "k", "v", "output")}
    tensors |= {f"blk.0.ffn_{name}": random(_FORWARD, _WIDTH) for name in ("gate", "up")}
    tensors["blk.0.ffn_down"] = random(_WIDTH, _FORWARD)
    for name in ("attn_output", "ffn_down"):
        tensors[f"blk.0.{name}"][0] = 0  # keeps the bias unchanged
    return {f"{name}.weight": values for name, values in tensors.items()}


def _bias(token: int) -> float:
    if token >= 256:
        return _NEVER
    return _LIKELY if 32 <= token < 127 or token == ord("\n") else _UNLIKELY


def _byte_letters() -> list[str]:
    """Return byte-level BPE's letter for each byte: the byte itself if visible, otherwise a letter from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
