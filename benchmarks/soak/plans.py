"""What one client does, by seed: what it asks, how it behaves, and the replies that its upstream gives."""

import json
import random
from typing import Any, Final

from attrs import frozen
from dialects import CLIENTS, PATHS, Ask, write
from replies import PROPERTIES, Reply, Shown, prose, reply, saying
from watch import SILENT

MANNERS: Final = ("reads",) * 30 + ("slow",) * 3 + ("SDK",) * 3 + (
    "leaves", "leaves", "leaves before the reply", "half a request", "no JSON", "no model",
)  # fmt: skip
"""How clients behave; most of them read to the end."""
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
"""Why an attempt is not accepted, and what it says."""


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
    """The request, before it became bytes."""
    replies: tuple[Reply, ...]
    """Of each attempt; the last one to all others."""
    causes: tuple[str, ...] = ()
    """Why the attempts before the last one are not accepted."""
    leaves_after: int = 0
    """Bytes of the answer, of a client that leaves."""
    keeps: bool = True
    """The connection is used again."""

    @property
    def passes(self) -> bool:
        """The reply passes byte for byte."""
        return self.client == "chat" and not self.tools

    @property
    def reply(self) -> Reply:
        """The one that the client gets."""
        return self.replies[-1]

    @property
    def expected(self) -> Shown:
        """What the client must get."""
        return self.reply.shown(forbidden=self.choice == "none") if self.tools else self.reply.untouched()


def plan(seed: int, number: int) -> Plan:
    """The exchange of this number."""
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
    """The replies of the attempts, and why those before the last one are not accepted."""
    last = reply(chance, whole=False, calls=True if choice == "required" else None)
    while choice == "none" and not any(part.kind == "text" for part in last.parts):
        last = reply(chance, whole=False)
    if not retries or choice == "none" or last.fault == "silence" or chance.random() < 0.8:
        return (last,), ()
    if choice == "required":
        cause, words = "required call missing", prose(chance)
    else:
        cause, words = chance.choice(UNACCEPTED)
    return (saying(words), last), (cause,)
