"""The streamtool command line; `main` is the entry point.

`app` declares the commands and their options. Each command is implemented in the module of the same name, shared
helpers are in `common`, and `exit_codes` maps errors to exit codes. All imports are deferred until a command needs
them, so that a missing extra is reported in one clear sentence; `bare` runs what needs no extra.
"""

from collections.abc import Sequence
from contextlib import nullcontext

from streamtool.cli.garbage import gc_disabled_until_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, 1, 2, 3 or 130, as documented in `streamtool --help`.

    `argv` defaults to the arguments of this process.
    """
    try:
        with gc_disabled_until_command() if argv is None else nullcontext():
            from streamtool.cli.app import run  # noqa: PLC0415  needs the extra

            return run(argv)
    except ModuleNotFoundError as error:
        from streamtool.cli import bare  # noqa: PLC0415

        missing = (error.name or "").partition(".")[0]
        if missing not in bare.EXTRA:
            raise
        return bare.run(argv, missing)
