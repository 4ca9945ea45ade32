"""How a command ends: its exit code, and the sentence that says what went wrong.

Every command runs inside `Commands.invoke`, the one place where an error becomes a sentence and an exit code.
"""

import logging
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from streamtool.cli.common import complain
from streamtool.errors import RequestError, SettingsError, StreamtoolError, UpstreamError, UpstreamRefused

DONE, FAILED, WRONG, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130

_QUIET = logging.NullHandler()
"""What ends a command is said once, as its error; who wants the log configures it."""


class Commands(TyperGroup):
    """Turns what a command raises into a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit instead of everything that is foreseen."""
        logging.getLogger("streamtool").addHandler(_QUIET)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except StreamtoolError as error:
            complain(sentence_of(error))
            raise typer.Exit(code_of(error)) from None
        except BrokenPipeError:  # whoever reads the output has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(DONE) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        return result


def sentence_of(error: StreamtoolError) -> str:
    """What is wrong; in a request also where."""
    if isinstance(error, RequestError) and error.param and error.param not in error.message:
        return f"{error.param}: {error.message}"
    if isinstance(error, UpstreamError) and error.status in _ADVICE:
        return f"{error.message} ({error.status}: {_ADVICE[error.status]})"
    return error.message


_ADVICE = {
    401: "--key-env names the variable that holds its key",
    403: "--key-env names the variable that holds its key",
    404: "is --model one of its models, and the url right?",
}
"""What to look at when an upstream answers so."""


def code_of(error: StreamtoolError) -> int:
    """The exit code that fits."""
    match error:
        case SettingsError() | RequestError():
            return WRONG
        case UpstreamRefused() | UpstreamError(code="upstream_authentication"):
            return FAILED
        case UpstreamError():
            return UNREACHABLE
        case _:
            return FAILED
