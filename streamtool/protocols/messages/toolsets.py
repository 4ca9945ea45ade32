"""Toolsets: entries in `tools` that each represent a family of tools run by the client, such as browser tools.

A toolset entry has no name. Its members are called by their own names, and each call also names the toolset. A toolset
is therefore a group of tools, and the model knows its members by names such as `browser.left_click`. All members are
offered except those that `configs` disables. The members' arguments follow the types of anthropic-python 2.12.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import field, frozen

from streamtool.core.conversation import Tool
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.shared.typed_tools import INTEGER, TEXT, described, object_schema


@frozen
class Member:
    """Tool that belongs to a toolset."""

    about: str
    required: Mapping[str, Json] = field(factory=dict)
    optional: Mapping[str, Json] = field(factory=dict)

    def parameters(self) -> Fields:
        """Return the schema of the tool's arguments."""
        return object_schema(tuple(self.required), **self.required, **self.optional)


_SECONDS: Final = described({"type": "number"}, "seconds")
_DIRECTION: Final = {"enum": ["up", "down", "left", "right"]}
_KEYS: Final = described(TEXT, "such as Return, ctrl+a or alt+Tab")
_REGION: Final = {"type": "array", "items": INTEGER, "description": "x0, y0, x1, y1, in pixels"}

# --- the browser

_SPOT: Final = object_schema(("type", "x", "y"), type={"const": "coordinate"}, x=INTEGER, y=INTEGER)
_ELEMENT: Final = object_schema(
    ("type", "ref"), type={"const": "ref"}, ref=described(TEXT, "as read_page or find gave it")
)
_TARGET: Final = {"anyOf": [_SPOT, _ELEMENT], "description": "a point in the viewport, or an element"}
_TAB: Final = {"tab_id": described(TEXT, "which tab; without it the active one")}
_HELD: Final = {"modifiers": described(TEXT, "keys held meanwhile, such as ctrl+shift"), **_TAB}

_BROWSER: Final = {
    "navigate": Member("Opens a page.", {"url": described(TEXT, "the address, or back, forward, reload")}, _TAB),
    "list_tabs": Member("Lists the open tabs with their ids, titles and addresses."),
    "new_tab": Member("Opens an empty tab and tells its id."),
    "switch_tab": Member("Makes a tab the active one.", {"tab_id": TEXT}),
    "close_tab": Member("Closes a tab.", {"tab_id": TEXT}),
    "read_page": Member(
        "Reads the page as a tree of elements, with references that other tools take as target.",
        optional={
            "filter": described({"enum": ["all", "interactive"]}, "which elements; without it the visible ones"),
            "depth": described(INTEGER, "how deep; 15 by default"),
            "ref": described(TEXT, "an element, to read only what is below it"),
            **_TAB,
        },
    ),
    "get_page_text": Member("Reads the text of the page.", optional=_TAB),
    "read_console": Member("Reads what the console has shown since the last look.", optional=_TAB),
    "read_network": Member("Lists the network requests since the last look.", optional=_TAB),
    "find": Member("Finds elements by what they are.", {"query": described(TEXT, "in plain words")}, _TAB),
    "form_input": Member(
        "Sets the value of a form's element.",
        {"target": _ELEMENT, "value": {"type": ["string", "number", "boolean"]}},
        _TAB,
    ),
    "file_upload": Member(
        "Gives files to an element that takes them: paths, document_ids or both.",
        {"target": _ELEMENT},
        {"paths": {"type": "array", "items": TEXT}, "document_ids": {"type": "array", "items": TEXT}, **_TAB},
    ),
    "scroll_to": Member("Scrolls an element into view.", {"target": _ELEMENT}, _TAB),
    "screenshot": Member("Takes a picture of the viewport.", optional=_TAB),
    "zoom": Member("Takes an enlarged picture of a part of the viewport.", {"region": _REGION}, _TAB),
    "left_click": Member("Clicks.", {"target": _TARGET}, _HELD),
    "right_click": Member("Clicks with the right button.", {"target": _TARGET}, _HELD),
    "middle_click": Member("Clicks with the middle button.", {"target": _TARGET}, _HELD),
    "double_click": Member("Clicks twice.", {"target": _TARGET}, _HELD),
    "triple_click": Member("Clicks three times, which selects a line or paragraph.", {"target": _TARGET}, _HELD),
    "hover": Member("Moves the pointer there without a click.", {"target": _TARGET}, _TAB),
    "left_click_drag": Member("Drags from one point to another.", {"from": _SPOT, "target": _SPOT}, _TAB),
    "left_mouse_down": Member("Presses the left button and holds it.", {"target": _SPOT}, _TAB),
    "left_mouse_up": Member("Releases the left button.", {"target": _SPOT}, _TAB),
    "mouse_move": Member("Moves the pointer.", {"target": _SPOT}, _TAB),
    "scroll": Member(
        "Scrolls.",
        {"target": _SPOT, "scroll_direction": _DIRECTION},
        {"scroll_amount": described(INTEGER, "notches of the wheel, 1 to 10; 3 by default"), **_TAB},
    ),
    "type": Member("Types text where the focus is.", {"text": TEXT}, _TAB),
    "key": Member("Presses keys.", {"text": _KEYS}, {"repeat": described(INTEGER, "how often"), **_TAB}),
    "hold_key": Member("Holds a key down.", {"text": _KEYS, "duration": _SECONDS}, _TAB),
    "wait": Member("Waits.", {"duration": _SECONDS}, _TAB),
    "javascript_exec": Member(
        "Runs JavaScript in the page and gives the value of its last expression.",
        {"text": described(TEXT, "the code, without return")},
        _TAB,
    ),
}

# --- the computer

_AT: Final = {"type": "array", "items": INTEGER, "description": "x and y, in pixels"}
_WHOLE: Final = described(INTEGER, "seconds")
_CLICK: Final = {
    "coordinate": {**_AT, "description": "x and y, in pixels; without it where the cursor is"},
    "text": described(TEXT, "keys held meanwhile, such as ctrl+shift"),
}

_COMPUTER: Final = {
    "key": Member("Presses a key or keys together.", {"text": _KEYS}, {"repeat": described(INTEGER, "how often")}),
    "hold_key": Member("Holds keys down.", {"text": _KEYS, "duration": _WHOLE}),
    "type": Member("Types text.", {"text": TEXT}),
    "cursor_position": Member("Tells where the cursor is."),
    "mouse_move": Member("Moves the cursor without a click.", {"coordinate": _AT}),
    "left_mouse_down": Member("Presses the left button and holds it."),
    "left_mouse_up": Member("Releases the left button."),
    "left_click": Member("Clicks.", optional=_CLICK),
    "left_click_drag": Member(
        "Drags from one point to another.", {"start_coordinate": _AT, "coordinate": _AT}, {"text": _CLICK["text"]}
    ),
    "right_click": Member("Clicks with the right button.", optional=_CLICK),
    "middle_click": Member("Clicks with the middle button.", optional=_CLICK),
    "double_click": Member("Clicks twice.", optional=_CLICK),
    "triple_click": Member("Clicks three times.", optional=_CLICK),
    "scroll": Member(
        "Scrolls.",
        {"scroll_direction": _DIRECTION, "scroll_amount": described(INTEGER, "notches of the wheel")},
        _CLICK,
    ),
    "wait": Member("Waits.", {"duration": _WHOLE}),
    "screenshot": Member("Takes a picture of the screen."),
    "zoom": Member("Takes an enlarged picture of a part of the screen.", {"region": _REGION}),
}

TOOLSETS: Final[Mapping[str, Mapping[str, Member]]] = {"browser": _BROWSER, "computer": _COMPUTER}
"""Members of each toolset, by the toolset's name in a call."""


def toolset_tools(toolset: str, fields: Fields) -> Iterator[Tool]:
    """Yield the tools of the toolset, except those that its `configs` disables."""
    configs = fields.get("configs")
    for name, member in TOOLSETS[toolset].items():
        config = configs.get(name) if isinstance(configs, Mapping) else None
        if not (isinstance(config, Mapping) and config.get("enabled") is False):
            yield Tool(f"{toolset}.{name}", member.about, member.parameters(), namespace=toolset)
