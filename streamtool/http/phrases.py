"""The phrases by which refusals are recognised, as the settings want them: those of the package, and those of a file.

The file is read once, when a middleware or transport is made, and compiled with the built-in ones into automata of its
own. What it may hold is explained in docs/refusals.md.
"""

from pathlib import Path

from streamtool.errors import SettingsError
from streamtool.policy.refusals import Phrases, PhrasesError, own_phrases
from streamtool.settings import Settings


def open_phrases(settings: Settings) -> Phrases | None:
    """The phrases with those of the file; None where none is named. Raises SettingsError when it cannot be used."""
    if settings.refusals != "retry" or settings.phrases is None:
        return None
    place = f'phrases: "{settings.phrases}"'
    try:
        return own_phrases(Path(settings.phrases).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{place} cannot be read: {error.strerror}", param="phrases") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{place} is not UTF-8", param="phrases") from None
    except PhrasesError as error:
        raise PhrasesError(f"{place}: {error.message}", param="phrases", code=error.code) from None
