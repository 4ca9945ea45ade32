"""The plan for one client, generated from a seed: its request, its behavior, and the replies of its upstream."""

import json
import random
from typing import Any, Final

from attrs import frozen
from replies import PROPERTIES, Reply, Shown, prose, reply, saying
from support.dialects import CLIENTS, PATHS, Ask, write
from watch import SILENT

MANNERS: Final = ("reads",) * 30 + ("slow",) * 3 + ("SDK",) * 3 + (
    "leaves", "leaves", "leaves before the reply", "half a request", "no JSON", "no model",
)  # fmt: skip
"""Behavior of clients; most of them read to the end."""
TOOLS: Final = tuple(
    (name, "Does something.", {"type": "object", "properties": given}) for name, given in PROPERTIES.items()
)
HISTORY: Final[tuple[Any, ...]] = (
    ("user", "Add them."),
    ("call", "call_old1", "add", {"a": 1, "b": 2, "exact": True}),
    ("call", "call_old2", "search", {"query": "the past", "tags": [], "options": {}}),
    ("result", "call_old1", "3"),
    ("result", "call_old2", "Nothing was found.\n<b>Nothing.</b>"),
)

UNACCEPTED: Final = (
    ("tools denied", "I'm sorry, but I don't have access to any tools in this conversation."),
    ("unknown tool", '<tool_call>{"name": "apply_patch", "arguments": {"x": 1}}</tool_call>'),
)
"""Causes of a retry, each with a reply that triggers it."""


@frozen
class Plan:
    """One exchange."""

    model: str
    client: str
    stream: bool
    tools: bool
    choice: str
    manner: str
    path: str
    body: bytes
    given: Any
    """The request, before it is encoded."""
    replies: tuple[Reply, ...]
    """Replies by attempt; any further attempts get the last one."""
    causes: tuple[str, ...] = ()
    """Causes of the retries."""
    leaves_after: int = 0
    """Number of response bytes that a disconnecting client reads."""
    keeps: bool = True
    """Whether the client reuses the connection."""

    @property
    def passes(self) -> bool:
        """Whether the reply is forwarded byte for byte."""
        return self.client == "chat" and not self.tools

    @property
    def reply(self) -> Reply:
        """The reply that the client gets."""
        return self.replies[-1]

    @property
    def expected(self) -> Shown:
        """The result that the client should get."""
        return self.reply.shown(forbidden=self.choice == "none") if self.tools else self.reply.untouched()


def plan(seed: int, number: int) -> Plan:
    """Return the exchange with this number."""
    chance = random.Random(f"{seed} {number}")
    client = chance.choice(CLIENTS)
    stream, tools = chance.random() < 0.7, chance.random() < 0.8
    choice = chance.choice(("auto",) * 6 + ("required", "none")) if tools else "auto"
    manner = chance.choice(MANNERS)
    history = HISTORY if tools and chance.random() < 0.3 else ()
    replies, causes = _replies(chance, choice, retries=tools and not history)
    model = f"{SILENT if replies[-1].fault == 'silence' else ''}soak-{seed}-{number}"
    turns = (("system", "Be brief."), *history, ("user", "Go on, please."))
    given = {**write(client, Ask(turns, TOOLS if tools else (), stream, choice)), "model": model}
    if chance.random() < 0.3 and client == "chat":
        given.pop("stream_options", None)
    return Plan(
        model,
        client,
        stream,
        tools,
        choice,
        manner,
        PATHS[client],
        json.dumps(given, ensure_ascii=chance.random() < 0.5).encode(),
        given,
        replies,
        causes,
        leaves_after=chance.choice((0, 1, 100, 500, 3000)),
        keeps=chance.random() < 0.7,
    )


def _replies(chance: random.Random, choice: str, *, retries: bool) -> tuple[tuple[Reply, ...], tuple[str, ...]]:
    """Return the replies for the attempts, and the causes of the retries."""
    last = reply(chance, whole=False, calls=True if choice == "required" else None)
    while choice == "none" and not any(part.kind == "text" for part in last.parts):
        last = reply(chance, whole=False)
    # A schema forces the call, and it may have caused this error, so the proxy tries again without it.
    unforced = ("forcing refused",) if choice == "required" and last.fault == "status 500" else ()
    if not retries or choice == "none" or last.fault == "silence" or chance.random() < 0.8:
        return (last,), unforced
    if choice == "required":
        cause, words = "required call missing", prose(chance)
    else:
        cause, words = chance.choice(UNACCEPTED)
    return (saying(words), last), (cause, *unforced)
