"""The command `streamtool`: `main` is its entry point; each command is a module of its own.

`app` declares the commands and their options, `exit_codes` says how they end, and what a command does is in the module
of its name. What all of them need is in `common`. Nothing of it is imported before a command needs it, so that the
missing extra is one clear sentence.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]

EXTRA = ("typer", "rich", "uvicorn", "hypercorn")
"""What the extra `serve` brings."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line (None: of this process): 0, 1, 2, 3 or 130, as `streamtool --help` says."""
    try:
        from streamtool.cli.app import run  # noqa: PLC0415  needs the extra

        return run(argv)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA:
            raise
        sentence = f'the command line needs the extra "serve" ({missing} is missing): pip install "streamtool[serve]"'
        print(f"streamtool: {sentence}", file=sys.stderr)
        return 2
