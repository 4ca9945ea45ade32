"""The help of the commands: in groups, without the types of arguments, and in lines that fit on any terminal."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand

from streamtool.cli.garbage import gc_enabled_for_command

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Try": ("demo", "parse", "formats"),
    "Serve": ("init", "serve", "reload", "recipe", "plugin"),
    "Run": ("run", "sessions"),
    "Look": ("inspect", "prompt", "probe"),
    "Develop": ("eval", "bench", "schema", "completion"),
}
"""Title of a group → its commands, in order."""
COMPLETE_VARIABLE: Final = "_STREAMTOOL_COMPLETE"
"""The environment variable that a shell sets to get completions."""
_RANGE: Final = re.compile(r"\s*\[[^\]]*(?<![\w])x[<>][^\]]*\]$")
_WORDS: Final = (
    (r"Input should be greater than or equal to (\S+)", r"expected a number that is at least \1"),
    (r"Input should be less than or equal to (\S+)", r"expected a number that is at most \1"),
    (r"Input should be a valid integer\b.*", "expected a whole number"),
    (r"Input should be a valid number\b.*", "expected a number"),
)
"""Pattern for a message about a value → our words."""


class Command(TyperCommand):
    """A command whose help contains neither the types of arguments nor the ranges of numbers."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Its arguments have been read, which imports further modules."""
        with gc_enabled_for_command():
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            told = parameter.get_help_record(ctx)
            if told is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                rows[title].append((told[0].partition(" <")[0], _RANGE.sub("", told[1])))
        for title, listed in rows.items():
            if listed:
                with formatter.section(title):
                    formatter.write_dl(listed)


def write_groups(group: Any, ctx: Any, formatter: Any) -> None:
    """Write the commands of a group, with the first sentence of their help."""
    for title, names in GROUPS.items():
        with formatter.section(title):
            formatter.write_dl([(name, group.get_command(ctx, name).get_short_help_str(200)) for name in names])


def about_value(error: typer.BadParameter, arguments: Sequence[str]) -> str:
    """Return the message of an error about the value of an option among these arguments, in our words."""
    told = error.message
    for pattern, words in _WORDS:
        told = re.sub(pattern, words, told)
    options = [] if error.param is None else error.param.opts
    found = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        option, equals, value = argument.partition("=")
        if option in options:
            found = f", found {value if equals else following!r}"
    name = options[-1] if options and options[-1].startswith("-") else ""
    return f"{name}: {told}{found}" if name else told
