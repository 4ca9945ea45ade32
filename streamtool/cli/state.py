"""The user's persistent state: its folder, and the calibrations that `eval` writes and `serve` applies."""

import os
from pathlib import Path
from typing import Final

from streamtool.core.errors import SettingsError
from streamtool.settings import Calibration
from streamtool.settings.calibrations import read_calibrations, write_calibrations

CALIBRATIONS: Final = "STREAMTOOL_CALIBRATIONS"
"""Environment variable that names the file with calibrations."""


def state_folder() -> Path:
    """Return the user's folder for persistent state."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "streamtool"


def private_folder(path: Path) -> Path:
    """Create a folder if necessary, and make it inaccessible to other users. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def calibrations_file(given: str | None) -> Path:
    """Return the path of the file with calibrations: the given one, that of the environment, or the default one."""
    name = given or os.environ.get(CALIBRATIONS)
    return Path(name) if name else state_folder() / "calibrations.json"


def load_calibrations(given: str | None, *, missing: bool = False) -> tuple[Calibration, ...]:
    """Return the calibrations in the file. It may be missing, unless it is given and not `missing`. Raises
    SettingsError.
    """
    path = calibrations_file(given)
    try:
        return read_calibrations(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        if given is None or missing:
            return ()
        raise SettingsError(f"{path} cannot be read: {error.strerror}", param="--calibrations") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", param="--calibrations") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8", param="--calibrations") from None


def save_calibration(given: str | None, new: Calibration) -> Path:
    """Add a calibration to the file, and return the file's path. Raises SettingsError."""
    path = calibrations_file(given)
    text = write_calibrations(load_calibrations(given, missing=True), new)
    try:
        if path.parent == state_folder():
            private_folder(path.parent)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(path)  # atomic: a server that reloads never reads a part of it
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}", param="--calibrations") from None
    return path
