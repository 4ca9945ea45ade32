"""The streamtool command line; `main` is the entry point.

`app` declares the commands and their options. Each command is implemented in the module of the same name, shared
helpers are in `common`, and `exit_codes` maps errors to exit codes. All imports are deferred until a command needs
them, so that a missing extra is reported in one clear sentence.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]

EXTRA = ("typer", "rich", "uvicorn", "hypercorn")
"""Packages installed by the `serve` extra."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, 1, 2, 3 or 130, as documented in `streamtool --help`.

    `argv` defaults to the arguments of this process.
    """
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
