"""Settings as frozen data, taken from flags, the environment, a TOML file and defaults, in this order of precedence.

This package reads neither files nor the environment. `load` takes the text of the file, the environment as a mapping,
and the flags. It merges them into one tree of plain values, resolves `env:NAME` references in it, and reads the tree
into `Settings`. Each field has its own reader (`readers`). Since the readers also run on direct construction
(`Settings(mode="emulate")`), the errors are the same in both cases and include the path, the expected type and the
value found. Secret keys never appear in errors or reprs.

Unknown settings are rejected, never silently ignored.
"""

from streamtool.settings.calibrations import Calibration
from streamtool.settings.data import Settings, check, check_reload, is_loopback, with_options
from streamtool.settings.load import load
from streamtool.settings.model import BY_SETTING, ModelSettings, PromptSettings
from streamtool.settings.tables import (
    TEMPLATES,
    CircuitSettings,
    KeyLimits,
    LimitSettings,
    McpSettings,
    Mode,
    ModelRule,
    ResultSettings,
    SchemaStyle,
    StoreSettings,
    TimeoutSettings,
    ToolSettings,
    UpstreamSettings,
)

__all__ = [
    "BY_SETTING",
    "TEMPLATES",
    "Calibration",
    "CircuitSettings",
    "KeyLimits",
    "LimitSettings",
    "McpSettings",
    "Mode",
    "ModelRule",
    "ModelSettings",
    "PromptSettings",
    "ResultSettings",
    "SchemaStyle",
    "Settings",
    "StoreSettings",
    "TimeoutSettings",
    "ToolSettings",
    "UpstreamSettings",
    "check",
    "check_reload",
    "is_loopback",
    "load",
    "with_options",
]
