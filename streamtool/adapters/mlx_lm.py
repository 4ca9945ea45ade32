"""mlx-lm: tool parsers that its server finds by name, one for each format with markers around its calls.

    "tool_parser_type": "streamtool_qwen3_coder"          in the model's tokenizer_config.json
    python -m streamtool.adapters.mlx_lm --model …        in place of mlx_lm.server

mlx-lm imports the module `mlx_lm.tool_parsers.NAME`, so this one enters modules of those names.

mlx-lm looks for the two markers itself, and hands over what stands between them when the second has come, or the text
has ended. So calls are not streamed. Any format with these markers is read.
"""

import json
import sys
from types import ModuleType
from typing import Any

from statemachine import Call, parse, tools_of
from statemachine.formats import FORMATS, Format
from statemachine.formats.markers import spelled

PACKAGE = "mlx_lm.tool_parsers"


def markers(form: Format) -> tuple[str, str] | None:
    """What a format writes before and behind its calls; None if there is nothing on one of the sides."""
    around = form.around or form.around_each
    opener = around or next(iter(form.openers), "")
    closer = dict(form.wrappers).get(around, form.close)
    return (spelled(opener), spelled(closer)) if opener and closer and not form.by_tool else None


def as_dict(call: Call) -> dict[str, Any]:
    """A call as mlx-lm takes it."""
    found = {"name": call.name, "arguments": json.loads(call.arguments)}
    return found if call.id is None else {**found, "id": call.id}


class ToolParserModule(ModuleType):
    """A module with the three names that mlx-lm asks for."""

    def __init__(self, name: str, start: str, end: str) -> None:
        super().__init__(name, "Made by streamtool.")
        self.tool_call_start = start
        self.tool_call_end = end

    def parse_tool_call(self, text: str, tools: list[Any] | None = None) -> dict[str, Any] | list[dict[str, Any]]:
        """The call that stands between the markers, or a list if there are several.

        Raises:
            ValueError: none is complete. mlx-lm logs that and goes on.

        """
        _, calls = parse(self.tool_call_start + text + self.tool_call_end, tools_of(tools or None))
        found = [as_dict(call) for call in calls if call.complete]
        if not found:
            raise ValueError("this is no complete call of an offered tool")
        return found[0] if len(found) == 1 else found


def register() -> list[str]:
    """Enters a module for each format that has markers. Returns the values of `tool_parser_type`."""
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
