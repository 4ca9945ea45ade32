"""`streamtool plugin`: where the plugin files for engines are, and how each is used."""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

import streamtool.adapters
from streamtool.cli.common import Screen
from streamtool.errors import SettingsError

FOLDER = Path(streamtool.adapters.__file__).parent


@frozen
class Plugin:
    """What puts the parser into an engine."""

    file: str
    use: str
    """The command that uses it."""


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
"""By the name of the engine."""


def run(engine: str | None) -> None:
    """Print the path of a plugin's file, or list all. Raises SettingsError for an engine that has none."""
    screen = Screen()
    if engine is None:
        for name, plugin in PLUGINS.items():
            screen.line((f"{name:<17}", "bold cyan"), plugin.use)
    elif engine in PLUGINS:
        print(FOLDER / PLUGINS[engine].file)
    else:
        raise SettingsError(f"there is no plugin for {engine!r}: ENGINE is one of {', '.join(PLUGINS)}")
