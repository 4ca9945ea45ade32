"""Tokenizers named in the settings, used to count prompt tokens."""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from streamtool.core.errors import SettingsError
from streamtool.prompting.window import CountTokens
from streamtool.settings import ModelSettings, Settings

_MAX_CACHED: Final = 8192
"""Number of strings whose token counts are cached. A conversation repeats its history in every request."""
_FILE: Final = "tokenizer.json"


class Tokenizer:
    """A token counter that uses a `tokenizer.json` file. `path` is the file or its Hugging Face folder. Raises
    SettingsError if the file cannot be read.
    """

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
        except Exception as error:  # the library raises no narrower exception
            raise SettingsError(f"tokenizer: {file} is not a valid {_FILE}: {error}", param="tokenizer") from error
        self._counts: dict[bytes, int] = {}

    def __call__(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        data = text.encode("utf-8", "replace")
        key = blake2b(data, digest_size=16).digest()
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= _MAX_CACHED:
                self._counts.clear()
            found = self._counts[key] = len(self._tokenizer.encode(data.decode(), add_special_tokens=False))
        return found


class TokenizerFiles:
    """The tokenizers of all models, loaded on creation."""

    def __init__(self, settings: Settings) -> None:
        paths = {settings.tokenizer, *(rule.tokenizer for rule in settings.models)}
        self._read: Mapping[str, Tokenizer] = {path: Tokenizer(path) for path in paths if path is not None}

    def of(self, model: ModelSettings) -> CountTokens | None:
        """Return the token counter for this model, or None if the count is to be estimated."""
        path = model.prompt.tokenizer
        return None if path is None else self._read.get(path)
