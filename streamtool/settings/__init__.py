"""Settings: frozen data out of flags, environment, a TOML file and defaults, in this order of precedence.

Nothing here reads a file or the environment by itself: `load` takes the file's text, a mapping that stands for the
environment, and the flags, merges the three into one tree of plain values, resolves `env:NAME` references in it, and
reads the tree into `Settings`. Each field carries its own reader (`readers`), which serves both the tree and direct
construction (`Settings(mode="emulate")`); so both fail with the same sentence: the path, what was expected, what was
found. Keys (secrets) are never shown, neither in an error nor in a repr.

Values that the design knows and this version cannot do yet are refused by name, never silently ignored.
"""

from streamtool.settings.data import Settings, check, with_options
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
    Schema,
    StoreSettings,
    TimeoutSettings,
    ToolSettings,
    UpstreamSettings,
)

__all__ = [
    "BY_SETTING",
    "TEMPLATES",
    "CircuitSettings",
    "KeyLimits",
    "LimitSettings",
    "McpSettings",
    "Mode",
    "ModelRule",
    "ModelSettings",
    "PromptSettings",
    "ResultSettings",
    "Schema",
    "Settings",
    "StoreSettings",
    "TimeoutSettings",
    "ToolSettings",
    "UpstreamSettings",
    "check",
    "load",
    "with_options",
]
