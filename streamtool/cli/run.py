"""`streamtool run`: an agent in the terminal, for one task or for a conversation.

Before a call is executed somebody is asked, unless `--yes` or `--allow` says that nobody need be; where nobody can be
asked, nothing begins. What is shown, asked, kept and counted is in `streamtool.cli.terminal`.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from attrs import frozen

from streamtool.agent import Agent, Event, McpServer
from streamtool.agent.functions import THREADS
from streamtool.cli.common import complain
from streamtool.cli.exit_codes import DONE, INTERRUPTED
from streamtool.cli.serve import ServeFlags
from streamtool.cli.terminal.asking import Asking
from streamtool.cli.terminal.chatting import COMMANDS, Chat
from streamtool.cli.terminal.costs import Meter, Prices
from streamtool.cli.terminal.dialog import Dialog
from streamtool.cli.terminal.live import InputLines, Live
from streamtool.cli.terminal.reading import PromptLines
from streamtool.cli.terminal.sessions import Session, latest_name, new_name, state_folder
from streamtool.errors import SettingsError
from streamtool.observe import logs


@frozen
class SessionFlags:
    """Whether a conversation is kept, and where; None: not given."""

    name: str | None = None
    resume: bool = False
    none: bool = False

    def open(self, *, wanted: bool) -> Session | None:
        """The session, open; None: nothing is kept. `wanted`: it is also kept if nobody has named it.

        Raises SettingsError for flags that contradict each other, a session that is not there, and one that cannot be
        kept although somebody has named it.
        """
        if self.none:
            if self.name is not None or self.resume:
                raise SettingsError("--no-session keeps nothing: leave --session and --resume out")
            return None
        if self.name is not None or self.resume:
            return Session(self.name or latest_name(), resume=self.resume)
        return unnamed_session() if wanted else None


def unnamed_session() -> Session | None:
    """A new session, named after the time; None, and a sentence, if none can be kept."""
    try:
        return Session(new_name())
    except SettingsError as error:
        complain(error.message)
        return None


@frozen
class RunFlags:
    """The flags of `run`; None: not given."""

    task: str | None
    upstream: ServeFlags
    """Those that say where the model is, and what holds for it."""
    system: str | None = None
    tools: Sequence[str] = ()
    mcp: Sequence[str] = ()
    max_turns: int = 20
    timeout: float = 60.0
    allow: Sequence[str] | None = ()
    """Tools that nobody is asked about, by name (`*`, `?`); None: all of them."""
    json: bool = False
    chat: bool = False
    session: SessionFlags = SessionFlags()
    prices: Prices | None = None

    def __attrs_post_init__(self) -> None:
        if self.json and self.chat:
            raise SettingsError("--json is for one task: leave --chat out")
        if self.task is None and self.json:
            raise SettingsError("--json is for one task: give one")
        if self.chats and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise SettingsError("a conversation needs a terminal; for one task, give the task")

    @property
    def chats(self) -> bool:
        """Further tasks are asked for."""
        return self.task is None or self.chat

    def agent(self, asking: Asking | None) -> Agent:
        """The agent that these flags, the environment and the settings file amount to. Raises SettingsError."""
        settings = self.upstream.settings()
        if settings.debug:
            logs.configure(settings)
        tools: list[Callable[..., Any] | McpServer] = [*map(function_of, self.tools), *map(McpServer, self.mcp)]
        if tools and not (self.allow is None or self.allow or sys.stdin.isatty()):
            raise SettingsError(
                "nobody can be asked before a call is executed: there is no terminal; --yes does without, and "
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
        )


def run(flags: RunFlags) -> None:
    """Run the task, or the conversation, to its end. Raises StreamtoolError."""
    meter = Meter(flags.prices)
    live = Live(meter)
    asking = None if flags.allow is None else Asking(sys.stdin, live, flags.allow)
    agent = flags.agent(asking)
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and not flags.json
    session = flags.session.open(wanted=terminal or flags.chats)
    show: Callable[[Event], None] = InputLines().show if flags.json else live.show
    dialog = Dialog(agent, show, meter, session)
    try:
        if flags.task is None or flags.chat:
            _chat(flags, Chat(agent, dialog, live, meter, _lines(flags), asking, _further(flags)))
        else:
            anyio.run(dialog.ask, flags.task)
            if dialog.session is not None and terminal:
                live.note(f"session {dialog.session.name}: streamtool run --resume goes on", "dim")
    except KeyboardInterrupt:
        _leave(INTERRUPTED)
        raise
    finally:
        dialog.close()
    _leave(DONE)


def _chat(flags: RunFlags, chat: Chat) -> None:
    def leave() -> None:
        os._exit(INTERRUPTED)  # a task that was interrupted does not end

    anyio.run(chat.run, flags.task, leave)


def _lines(flags: RunFlags) -> PromptLines:
    return PromptLines(None if flags.session.none else state_folder() / "history", list(COMMANDS))


def _further(flags: RunFlags) -> Callable[[], Session | None]:
    """What makes the sessions of further conversations."""
    return (lambda: None) if flags.session.none else unnamed_session


def _leave(code: int) -> None:
    """End the process here if a function still runs in a thread: Python would wait for it, however long it takes."""
    if any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def function_of(path: str) -> Callable[..., Any]:
    """What `module:function` names; modules of the working directory count. Raises SettingsError."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise SettingsError(f"--tool: expected module:function, found {path!r}", param="--tool")
    if os.getcwd() not in sys.path:  # noqa: PTH109  as an entry of sys.path
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"--tool: {path} cannot be loaded: {error}", param="--tool") from None
    if not callable(found) and not hasattr(found, "call"):
        raise SettingsError(f"--tool: {path} is no function", param="--tool")
    return found  # type: ignore[no-any-return]  # it is callable, or a tool of its own kind
