"""Size of the tool prompt: tokens of the prompt and of its fixed part, and how short the tools' JSON becomes.

    python benchmarks/prompt_size.py [REQUEST.json ...] [--format NAME] [--schema STYLE] [--tokenizer FILE]

Without arguments, the sets of tools are one small tool, the largest sets of `streamtool eval`, and the median set of
BFCL if `bfcl-eval` is installed. A file contains the body of a request in any client protocol. Tokens are estimated
(four bytes each) unless a tokenizer is named; `streamtool serve` accepts the same files (`tokenizer`).

- *prompt*: the whole tool prompt, in tokens.
- *fixed*: the prompt without the listed tools, in tokens.
- *JSON*: the tools as compact JSON, in tokens.
- *signatures*: the size of the listed tools without the text of descriptions, relative to their JSON without it, in
  bytes.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from common import Row, Table

from streamtool.cli.prompt import address, guess_protocol
from streamtool.core.conversation import Tool
from streamtool.core.errors import SettingsError
from streamtool.evaluation import bfcl
from streamtool.evaluation.scenario import suite
from streamtool.prompting.tool_prompt import EXAMPLE_HEADING, LIST_HEADING, build_tool_prompt
from streamtool.prompting.window import CountTokens, estimate_tokens
from streamtool.protocols.registry import client_protocol
from streamtool.schemas.parameters import parameters
from streamtool.settings import ModelSettings, Settings
from streamtool.upstream.tokenizers import Tokenizer

FIXED: Final = 350
"""Maximum size of the fixed part, in tokens."""
SIGNATURES: Final = 0.4
"""Maximum size of the listed tools without the text of descriptions, relative to their JSON without it."""
FEW: Final = 8
"""Minimum number of tools in the sets of `streamtool eval` that are measured."""
SMALL: Final = Tool(
    "get_weather",
    "Get the current weather in a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city, such as Lisbon."},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    },
)


@frozen
class PromptSize:
    """The size of one tool prompt: three numbers of tokens, and a share of bytes."""

    prompt: int
    fixed: int
    json: int
    signatures: float


def size_of(tools: Sequence[Tool], model: ModelSettings, count: CountTokens = estimate_tokens) -> PromptSize:
    """Return the size of the tool prompt for these tools."""
    text = build_tool_prompt(tools, model.format, model).text
    before, _, rest = text.partition(f"{LIST_HEADING}\n\n")
    listed, _, after = rest.rpartition(f"\n\n{EXAMPLE_HEADING}\n")
    note = listed.partition("\n\n")[0] if listed.startswith("`?`") else ""
    listed = listed.removeprefix(f"{note}\n\n")
    written = json.dumps(list(map(_as_json, tools)), ensure_ascii=False, separators=(",", ":"))
    shown = sum(map(_length, chain.from_iterable(map(_shown, tools))))
    described = sum(map(_length, _descriptions(list(map(_as_json, tools)))))
    signatures = (_length(listed) - shown) / (_length(written) - described)
    return PromptSize(count(text), count(before + note + after), count(written), signatures)


def tools_of(body: bytes) -> Sequence[Tool]:
    """Return the tools of a request in any client protocol."""
    protocol = guess_protocol(body)
    return client_protocol(protocol, address(protocol, body)).read_request(body, Settings().limits).tools


def _length(text: str) -> int:
    return len(text.encode())


def _as_json(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _shown(tool: Tool) -> Iterator[str]:
    """Yield the descriptions that the compact style shows."""
    yield tool.description.strip()
    yield from (parameter.description for parameter in parameters(tool.parameters))


def _descriptions(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key == "description" and isinstance(part, str):
                yield part.strip()
            else:
                yield from _descriptions(part)
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_descriptions, value))


def _sets() -> Iterator[tuple[str, Sequence[Tool]]]:
    """Yield the sets of tools that are measured without arguments."""
    yield "one small tool", [SMALL]
    by_number = {len(scenario.tools): scenario.tools for scenario in suite()}
    yield from ((f"eval, {number} tools", by_number[number]) for number in sorted(by_number) if number >= FEW)
    try:
        sets = [scenario.tools for scenario in bfcl.scenarios(("multiple", "live_multiple"))]
    except SettingsError:  # bfcl-eval is not installed
        return
    sets.sort(key=lambda tools: len(json.dumps(list(map(_as_json, tools)))))
    yield "BFCL, median of multiple", sets[len(sets) // 2]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("requests", nargs="*", type=Path, metavar="REQUEST.json")
    arguments.add_argument("--format", default="auto")
    arguments.add_argument("--schema", default="compact")
    arguments.add_argument("--tokenizer")
    chosen = arguments.parse_args()
    model = Settings(format=chosen.format, schema=chosen.schema).for_model("")
    count = Tokenizer(chosen.tokenizer) if chosen.tokenizer else estimate_tokens
    sets = [(path.name, tools_of(path.read_bytes())) for path in chosen.requests] or list(_sets())
    rows = []
    for name, tools in sets:
        size = size_of(tools, model, count)
        cells = (
            name,
            str(len(tools)),
            f"{size.prompt:,}",
            f"{size.fixed:,}",
            f"{size.json:,}",
            f"{size.signatures:.0%}",
        )
        right = size.fixed <= FIXED and (size.signatures <= SIGNATURES or chosen.schema != "compact")
        rows.append(Row(cells, f"fixed {FIXED}, signatures {SIGNATURES:.0%}", right))
    columns = ("tools", "number", "prompt", "fixed", "JSON", "signatures")
    sys.exit(bool(Table(f"Tool prompt, format {model.format}, schema {chosen.schema}", columns, rows).show()))


if __name__ == "__main__":
    main()
