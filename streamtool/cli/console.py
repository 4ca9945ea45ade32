"""A console for styled output."""

from rich.console import Console


class PipeConsole(Console):
    """A console that lets the command handle closed output."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError. Without this method, rich would exit with a failure."""
        raise BrokenPipeError
