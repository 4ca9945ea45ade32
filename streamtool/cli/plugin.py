"""`streamtool plugin`: list the plugins for inference engines, or print one plugin's path."""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

import streamtool.adapters
from streamtool.cli.common import Screen
from streamtool.core.errors import SettingsError

FOLDER = Path(streamtool.adapters.__file__).parent


@frozen
class Plugin:
    """A plugin that integrates the parser into an engine."""

    file: str
    use: str
    """Command or statement that enables the plugin."""


PLUGINS: Mapping[str, Plugin] = {
    "vllm": Plugin(
        "vllm_plugin.py",
        "vllm serve MODEL --enable-auto-tool-choice --tool-parser-plugin FILE --tool-call-parser streamtool"
        " --reasoning-parser-plugin FILE --reasoning-parser streamtool",
    ),
    "sglang": Plugin(
        "sglang.py",
        "sglang serve --model-path MODEL --tool-call-parser streamtool --reasoning-parser streamtool",
    ),
    "mlx-lm": Plugin("mlx_lm.py", "python -m streamtool.adapters.mlx_lm --model MODEL"),
    "transformers": Plugin("transformers.py", "streamtool.adapters.transformers.install(tokenizer)"),
    "llama-cpp-python": Plugin("llama_cpp.py", 'import streamtool.adapters.llama_cpp, then chat_format="streamtool"'),
}
"""Plugins by engine name."""


def run(engine: str | None) -> None:
    """List all plugins, or print the path of one engine's plugin file. Raises SettingsError for an unknown engine."""
    screen = Screen()
    if engine is None:
        for name, plugin in PLUGINS.items():
            screen.line((f"{name:<17}", "bold cyan"), plugin.use)
    elif engine in PLUGINS:
        print(FOLDER / PLUGINS[engine].file)
    else:
        raise SettingsError(f"no plugin for {engine!r}; expected one of {', '.join(PLUGINS)}")
