"""`streamtool completion`: print the script that makes a shell complete the command line."""

from typer.completion import get_completion_script  # type: ignore[attr-defined]  # missing in __all__

from streamtool.cli.help import COMPLETE_VARIABLE
from streamtool.core.errors import SettingsError

SHELLS = ("bash", "zsh", "fish")


def run(name: str) -> None:
    """Print the script for this shell. Raises SettingsError for any other shell."""
    if name not in SHELLS:
        raise SettingsError(f"SHELL: expected {', '.join(SHELLS)}, found {name!r}", param="SHELL")
    print(get_completion_script(prog_name="streamtool", complete_var=COMPLETE_VARIABLE, shell=name))
