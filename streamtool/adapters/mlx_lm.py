"""mlx-lm: tool parsers that mlx-lm's server finds by name, one for each format that puts markers around calls.

    "tool_parser_type": "streamtool_qwen3_coder"          in the model's tokenizer_config.json
    python -m streamtool.adapters.mlx_lm --model …        instead of mlx_lm.server

mlx-lm imports the `NAME` parser as the `mlx_lm.tool_parsers.NAME` module, so this module registers a module under such
a name for each parser.

mlx-lm itself searches for the two markers, and passes the text between them to the parser once the second marker has
arrived or the reply has ended. Calls are therefore not streamed. Calls between these markers can be in any format.
"""

import json
import sys
from types import ModuleType
from typing import Any

from statemachine import Call, parse, tools_of
from statemachine.formats import FORMATS, Format
from statemachine.formats.markers import spell

PACKAGE = "mlx_lm.tool_parsers"


def markers(form: Format) -> tuple[str, str] | None:
    """Return the markers that a format writes before and after its calls, or None if it does not write both."""
    around = form.around or form.around_each
    opener = around or next(iter(form.openers), "")
    closer = dict(form.wrappers).get(around, form.close)
    return (spell(opener), spell(closer)) if opener and closer and not form.by_tool else None


def as_dict(call: Call) -> dict[str, Any]:
    """Convert a call to the dict that mlx-lm expects."""
    found = {"name": call.name, "arguments": json.loads(call.arguments)}
    return found if call.id is None else {**found, "id": call.id}


class ToolParserModule(ModuleType):
    """Module with the three names that mlx-lm looks up."""

    def __init__(self, name: str, start: str, end: str) -> None:
        super().__init__(name, "Made by streamtool.")
        self.tool_call_start = start
        self.tool_call_end = end

    def parse_tool_call(self, text: str, tools: list[Any] | None = None) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the call between the markers, or a list if there are several calls.

        Raises:
            ValueError: no call is complete. mlx-lm logs the error and continues.
        """
        _, calls = parse(self.tool_call_start + text + self.tool_call_end, tools_of(tools or None))
        found = [as_dict(call) for call in calls if call.complete]
        if not found:
            raise ValueError("the text contains no complete call to an offered tool")
        return found[0] if len(found) == 1 else found


def register() -> list[str]:
    """Register a module for each format that has both markers. Return the values to use for `tool_parser_type`."""
    names = []
    for form in FORMATS.values():
        if (pair := markers(form)) is not None:
            names.append(f"streamtool_{form.name}")
            sys.modules[f"{PACKAGE}.{names[-1]}"] = ToolParserModule(f"{PACKAGE}.{names[-1]}", *pair)
    return names


NAMES = register()

if __name__ == "__main__":
    from mlx_lm.server import main

    main()
