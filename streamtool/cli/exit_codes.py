"""Exit codes and error messages of the commands.

Every command runs inside `Commands.invoke`, which alone turns exceptions into messages and exit codes.
"""

import logging
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from streamtool.cli.common import print_error
from streamtool.cli.help import about_value, write_groups
from streamtool.core.errors import RequestError, SettingsError, StreamtoolError, UpstreamError, UpstreamRefused

DONE, FAILED, USAGE_ERROR, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130

_QUIET = logging.NullHandler()
"""Keeps the log quiet by default, so that an error that ends a command is reported only once, by `Commands.invoke`."""


class Commands(TyperGroup):
    """Command group that turns exceptions into a message and an exit code."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups."""
        write_groups(self, ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit in place of every expected exception."""
        logging.getLogger("streamtool").addHandler(_QUIET)
        arguments = list(ctx.args)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except StreamtoolError as error:
            print_error(message_of(error))
            raise typer.Exit(code_of(error)) from None
        except typer.BadParameter as error:
            if type(error) is not typer.BadParameter:  # a missing argument, whose message is a sentence already
                raise
            print_error(about_value(error, arguments))
            raise typer.Exit(USAGE_ERROR) from None
        except BrokenPipeError:  # the reader of our output has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(DONE) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        return result


def message_of(error: StreamtoolError) -> str:
    """Return an error's message, preceded by the invalid field's path for an invalid request, and followed by a hint
    for some upstream errors.
    """
    if isinstance(error, RequestError) and error.param and error.param not in error.message:
        return f"{error.param}: {error.message}"
    if isinstance(error, UpstreamError) and error.status in _ADVICE:
        return f"{error.message} ({error.status}: {_ADVICE[error.status]})"
    return error.message


_ADVICE = {
    401: "use --key-env to name the variable that holds the key",
    403: "use --key-env to name the variable that holds the key",
    404: "check --model and the URL",
}
"""Hints for error statuses returned by an upstream."""


def code_of(error: StreamtoolError) -> int:
    """Return the exit code for an error."""
    match error:
        case SettingsError() | RequestError():
            return USAGE_ERROR
        case UpstreamRefused() | UpstreamError(code="upstream_authentication"):
            return FAILED
        case UpstreamError():
            return UNREACHABLE
        case _:
            return FAILED
