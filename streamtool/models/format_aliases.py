"""Other names of formats: parsers of vLLM and SGLang, names that a family goes by, and names of models.

Letter case, `-`, `_`, `.` and spaces do not matter, so a parser's name that is the name of a format in another spelling
(`minimax-m2`, `deepseekv3`) needs no row. Sources: `vllm/tool_parsers/__init__.py` and
`sglang/srt/function_call/function_call_parser.py`, November 2026.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from statemachine.formats import FORMATS
from streamtool.models.families import UNKNOWN, family_of

FORMAT_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        # parsers of vLLM and SGLang
        "apertus2509": "apertus",
        "cohere_command3": "cohere",
        "cohere_command4": "cohere",
        "deepseek_v4": "deepseek_v32",
        "ernie45": "ernie",
        "glm": "glm45",
        "gpt_oss": "harmony",
        "granite_20b_fc": "granite",
        "granite4": "tool_call",
        "hermes": "tool_call",
        "hunyuan": "hunyuan_v3",
        "hy_v3": "hunyuan_v3",
        "hy_v4": "hunyuan_v3",
        "interns1": "internlm",
        "llama3_json": "llama3",
        "llama4_json": "llama3",
        "llama4_pythonic": "pythonic",
        "minimax": "minimax_m1",
        "openai": "harmony",
        "phi4_mini_json": "phi4",
        "poolside_v1": "glm47",
        "qwen": "tool_call",
        "qwen25": "tool_call",
        "qwen3_xml": "qwen3_coder",
        "spark25": "glm47",
        "step3p5": "qwen3_coder",
        "trinity": "tool_call",
        # families, by the name of the format that they were trained on
        "claude": "invoke",
        "cline": "tag",
        "command_a": "cohere",
        "command_r7b": "cohere",
        "deepseek": "deepseek_v3",
        "deepseek_r1": "deepseek_v3",
        "glm4": "glm45",
        "kimi": "kimi_k2",
        "llama": "llama3",
        "llama4": "pythonic",
        "phi4_mini": "phi4",
        "qwen2": "tool_call",
        "qwen3": "tool_call",
        "qwen_coder": "qwen3_coder",
        "roo": "tag",
    }
)
"""Other name → format."""

_MODEL: Final = re.compile(r"[/:]|(?<![a-z])\d+(?:\.\d+)?[bm](?![a-z])", re.IGNORECASE)
"""Matches parts of names that only models have: an owner, a tag, a size."""
_SEPARATOR: Final = re.compile(r"[-_. ]+")


def find_format_name(name: str) -> str | None:
    """Return the name of the format that `name` stands for in another spelling or by an alias, or None."""
    return _BY_SPELLING.get(_squeezed(name))


def looks_like_model(name: str) -> bool:
    """Return whether this may be the name of a model: it has a part that no format's name has, or is the name of a
    known family without `_`, which is more likely in a misspelled format.
    """
    return _MODEL.search(name) is not None or ("_" not in name and family_of(name) is not UNKNOWN)


def _squeezed(name: str) -> str:
    return _SEPARATOR.sub("", name.strip().lower())


_BY_SPELLING: Final[Mapping[str, str]] = MappingProxyType(
    {_squeezed(alias): name for alias, name in FORMAT_ALIASES.items()} | {_squeezed(name): name for name in FORMATS}
)
"""Name in lower case without separators → format."""
