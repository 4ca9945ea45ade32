"""`streamtool run`: an agent in the terminal, for one task or for a conversation.

The user approves each call before it is executed, unless `--yes` or `--allow` makes approval unnecessary. Without these
flags, a run with tools requires a terminal. Display, approval, sessions and costs are in `streamtool.cli.terminal`.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from attrs import frozen

from streamtool.agent import Agent, McpServer
from streamtool.agent.functions import THREAD_PREFIX
from streamtool.cli.common import print_error
from streamtool.cli.exit_codes import DONE, INTERRUPTED
from streamtool.cli.serve import ServeFlags
from streamtool.cli.state import state_folder
from streamtool.cli.terminal.asking import Approval
from streamtool.cli.terminal.chatting import COMMANDS, Chat
from streamtool.cli.terminal.costs import Meter, Prices
from streamtool.cli.terminal.dialog import Dialog
from streamtool.cli.terminal.live import JsonLines, Live
from streamtool.cli.terminal.reading import PromptLines
from streamtool.cli.terminal.sessions import Session, latest_name, new_name
from streamtool.core.errors import SettingsError
from streamtool.exchange.record import Record
from streamtool.observe import logs


@frozen
class SessionFlags:
    """Flags that control how the conversation is saved."""

    name: str | None = None
    resume: bool = False
    none: bool = False

    def open(self, *, wanted: bool) -> Session | None:
        """Open the session, or return None if nothing should be saved.

        If `wanted` is true, the conversation is saved even if no session is named. Raises SettingsError for
        contradictory flags, for a missing session, and for a named session that cannot be saved.
        """
        if self.none:
            if self.name is not None or self.resume:
                raise SettingsError("--no-session cannot be combined with --session or --resume")
            return None
        if self.name is not None or self.resume:
            return Session(self.name or latest_name(), resume=self.resume)
        return unnamed_session() if wanted else None


def unnamed_session() -> Session | None:
    """Open a new session named after the current time. If that fails, print why and return None."""
    try:
        return Session(new_name())
    except SettingsError as error:
        print_error(error.message)
        return None


@frozen
class RunFlags:
    """Flags of `streamtool run`. None means that the flag was not given."""

    task: str | None
    upstream: ServeFlags
    """Flags for the upstream, the model and its settings."""
    system: str | None = None
    tools: Sequence[str] = ()
    mcp: Sequence[str] = ()
    max_turns: int = 20
    timeout: float = 60.0
    allow: Sequence[str] | None = ()
    """Names or patterns (`*`, `?`) of tools that run without asking; None for all tools."""
    json: bool = False
    chat: bool = False
    session: SessionFlags = SessionFlags()
    prices: Prices | None = None

    def __attrs_post_init__(self) -> None:
        if self.json and self.chat:
            raise SettingsError("--json and --chat cannot be combined")
        if self.task is None and self.json:
            raise SettingsError("--json requires a task")
        if self.chats and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise SettingsError("a conversation requires a terminal; to run a single task, pass it as an argument")

    @property
    def chats(self) -> bool:
        """Whether to prompt for further tasks."""
        return self.task is None or self.chat

    def agent(self, asking: Approval | None, judge: Callable[[Record], None]) -> Agent:
        """Return the agent defined by these flags, the environment and the settings file. `judge` receives the record
        of each exchange. Raises SettingsError.
        """
        settings = self.upstream.settings()
        if settings.debug:
            logs.configure(settings)
        tools: list[Callable[..., Any] | McpServer] = [*map(function_of, self.tools), *map(McpServer, self.mcp)]
        if tools and not (self.allow is None or self.allow or sys.stdin.isatty()):
            raise SettingsError(
                "cannot ask for approval without a terminal; pass --yes to run all tools without asking, or "
                "--allow NAME for one tool"
            )
        return Agent(
            None if settings.upstreams else "sample",
            tools,
            settings=settings,
            system=self.system,
            max_turns=self.max_turns,
            timeout=self.timeout,
            approve=asking,
            quoted_calls="refuse" if asking is None else "approve",
            on_exchange=judge,
        )


def run(flags: RunFlags) -> None:
    """Run the task, or the conversation, to its end. Raises StreamtoolError."""
    meter = Meter(flags.prices)
    live = Live(meter)
    asking = None if flags.allow is None else Approval(sys.stdin, live, flags.allow)
    shown = JsonLines() if flags.json else live
    agent = flags.agent(asking, shown.judge)
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and not flags.json
    session = flags.session.open(wanted=terminal or flags.chats)
    dialog = Dialog(agent, shown.show, meter, session)
    try:
        if flags.task is None or flags.chat:
            _chat(flags, Chat(agent, dialog, live, meter, _lines(flags), asking, _session_factory(flags)))
        else:
            anyio.run(dialog.ask, flags.task)
            if dialog.session is not None and terminal:
                live.note(f"session {dialog.session.name}: continue with streamtool run --resume", "dim")
    except KeyboardInterrupt:
        _exit_if_threads_run(INTERRUPTED)
        raise
    finally:
        dialog.close()
    _exit_if_threads_run(DONE)


def _chat(flags: RunFlags, chat: Chat) -> None:
    def leave() -> None:
        os._exit(INTERRUPTED)  # the interrupted task does not stop

    anyio.run(chat.run, flags.task, leave)


def _lines(flags: RunFlags) -> PromptLines:
    return PromptLines(None if flags.session.none else state_folder() / "history", list(COMMANDS))


def _session_factory(flags: RunFlags) -> Callable[[], Session | None]:
    """Return a function that opens a session for each further conversation."""
    return (lambda: None) if flags.session.none else unnamed_session


def _exit_if_threads_run(code: int) -> None:
    """Exit immediately if a tool's thread is still running, because Python would wait for it indefinitely."""
    if any(thread.name.startswith(THREAD_PREFIX) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def function_of(path: str) -> Callable[..., Any]:
    """Import the function named by `module:function`. The working directory is searched, too. Raises SettingsError."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise SettingsError(f"--tool: expected module:function, found {path!r}", param="--tool")
    if os.getcwd() not in sys.path:  # noqa: PTH109  entries of sys.path are strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"--tool: cannot load {path}: {error}", param="--tool") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  the module is the user's code
        raise SettingsError(f"--tool: cannot load {path}: {type(error).__name__}: {error}", param="--tool") from None
    if not callable(found) and not hasattr(found, "call"):
        raise SettingsError(f"--tool: {path} is not a function", param="--tool")
    return found  # type: ignore[no-any-return]  # a callable or an ExecutableTool
