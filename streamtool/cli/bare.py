"""The command line without the `serve` extra: the version, a short help, and `streamtool parse`.

`app` needs typer. Its `parse` and the one here have the same options and run the same code.
"""

import io
import os
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from typing import Any, Final

from streamtool.cli.common import print_error
from streamtool.cli.exit_codes import DONE, INTERRUPTED, code_of, is_of_plugin, message_of
from streamtool.cli.parse_flags import ParseFlags
from streamtool.cli.parse_flags import run as run_parse
from streamtool.core.errors import StreamtoolError

EXTRA: Final = ("typer", "rich", "uvicorn", "hypercorn")
"""Packages installed by the `serve` extra."""
_ABOUT: Final = "Streamed tool calls for language models that only write text."


def count(text: str) -> int:
    """Read a number of at least 1. Raises ArgumentTypeError."""
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise ArgumentTypeError(f"expected a whole number that is at least 1, found {text!r}")
    return found


OPTIONS: Final[Sequence[tuple[str, str, str | None, str]]] = (
    ("tools", "--tools", "FILE", "JSON list of tools (OpenAI's, or {name, parameters}); default: any name."),
    ("formats", "--formats", "A,B", "Formats to listen for; default: all but the opt-in ones."),
    ("delta", "--delta", "N", "Feed N characters at a time; default: as they arrive."),
    ("as_json", "--json", None, "Print one JSON object per event."),
    ("prefix", "--prefix", "TEXT", "Start of the reply, if the prompt already contained it."),
    ("replay", "--replay", "FILE", "Replay this recording instead of parsing a file."),
    ("negatives", "--negatives", "FOLDER", "Report false calls and lost text in all files in this folder."),
    ("field", "--field", "PATH", "Parse records (JSONL, or a JSON array); PATH leads to the text in each."),
    ("tools_field", "--tools-field", "PATH", "Path to the tools in each record; default: use --tools."),
    ("jobs", "--jobs", "N", "Number of processes for records; default: one per core."),
    ("output", "--output", "FILE", "File for the results of records (.jsonl, .parquet); default: stdout."),
    ("resume", "--resume", None, "Continue the interrupted run that wrote to --output."),
    ("page", "--page", None, "Show the text on a web page, where you can edit it."),
)
"""The options of `parse`: field of `ParseFlags`, name, metavar (None: a flag), help."""


def run(argv: Sequence[str] | None, missing: str) -> int:
    """Run a command line and return its exit code. `missing` is a package of the extra."""
    sentence = f'this command needs the extra "serve" ({missing} is missing): pip install "streamtool[serve]"'
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-") and arguments[0] != "parse":
        print_error(sentence)
        return 2
    parser = _parser()
    try:
        given = vars(parser.parse_args(arguments))
    except SystemExit as end:  # help, version or wrong usage, which argparse has printed
        return end.code if isinstance(end.code, int) else 2
    if given.pop("command") is None:
        parser.print_help(sys.stderr)
        return 2
    return _guarded(ParseFlags(**given), sentence)


def _guarded(flags: ParseFlags, sentence: str) -> int:
    """Parse, and turn exceptions into a message and an exit code, as `Commands.invoke` does."""
    try:
        code = run_parse(flags)
        sys.stdout.flush()
    except StreamtoolError as error:
        print_error(message_of(error))
        return code_of(error)
    except ValueError as error:
        if not is_of_plugin(error):
            raise
        print_error(str(error))
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        print_error(sentence)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _parser() -> ArgumentParser:
    from streamtool import __version__  # noqa: PLC0415  slow: reads the distribution's metadata

    parser = ArgumentParser(
        "streamtool", description=_ABOUT, epilog='All other commands need the extra: pip install "streamtool[serve]"'
    )
    parser.add_argument("--version", action="version", version=f"streamtool {__version__}", help="Show the version.")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    about = "Print the parser events for model text."
    parse = commands.add_parser("parse", help=about, description=about, argument_default=SUPPRESS)
    parse.add_argument(
        "files",
        nargs="*",
        metavar="FILE…|-",
        help="File of model text (- for standard input), or files of records.",
    )
    for field, name, metavar, told in OPTIONS:
        how: dict[str, Any] = {"action": "store_true"} if metavar is None else {"metavar": metavar}
        if metavar == "N":
            how["type"] = count
        parse.add_argument(name, dest=field, help=told, **how)
    return parser
