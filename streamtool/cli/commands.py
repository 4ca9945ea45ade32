"""The group of all commands. Each runs inside `Commands.invoke`, which alone turns exceptions into exit codes."""

import logging
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from streamtool.cli.common import print_error
from streamtool.cli.exit_codes import DONE, INTERRUPTED, USAGE_ERROR, code_of, is_of_plugin, message_of
from streamtool.cli.help import about_value, write_groups
from streamtool.core.errors import StreamtoolError

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
        except ValueError as error:
            if not is_of_plugin(error):
                raise
            print_error(str(error))
            raise typer.Exit(USAGE_ERROR) from None
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
