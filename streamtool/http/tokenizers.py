"""The tokenizers that the settings name: they count what a model reads."""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from streamtool.errors import SettingsError
from streamtool.prompting.window import CountTokens
from streamtool.settings import ModelSettings, Settings

_REMEMBERED: Final = 8192
"""Texts of which a tokenizer remembers the count, since a conversation repeats its past in every request."""
_FILE: Final = "tokenizer.json"


class Tokenizer:
    """Counts by a `tokenizer.json`, or by that of a Hugging Face folder. Raises SettingsError if it cannot be read."""

    __slots__ = ("_counts", "_tokenizer")

    def __init__(self, path: str) -> None:
        try:
            import tokenizers  # noqa: PLC0415  an extra
        except ImportError as missing:
            raise SettingsError(
                'tokenizer: tokenizers is missing; install the extra "tokenizer": pip install "streamtool[tokenizer]"',
                param="tokenizer",
                code="missing_extra",
            ) from missing
        file = Path(path).expanduser()
        file = file / _FILE if file.is_dir() else file
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise SettingsError(f"tokenizer: {file} is no {_FILE}: {error}", param="tokenizer") from error
        self._counts: dict[bytes, int] = {}

    def __call__(self, text: str) -> int:
        """How many tokens the text has."""
        data = text.encode("utf-8", "replace")
        key = blake2b(data, digest_size=16).digest()
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= _REMEMBERED:
                self._counts.clear()
            found = self._counts[key] = len(self._tokenizer.encode(data.decode(), add_special_tokens=False))
        return found


class TokenizerFiles:
    """Those of all models, read when this is made."""

    def __init__(self, settings: Settings) -> None:
        paths = {settings.tokenizer, *(rule.tokenizer for rule in settings.models)}
        self._read: Mapping[str, Tokenizer] = {path: Tokenizer(path) for path in paths if path is not None}

    def of(self, model: ModelSettings) -> CountTokens | None:
        """What counts for this model; None: an estimate does."""
        path = model.prompt.tokenizer
        return None if path is None else self._read.get(path)
