"""`streamtool recipe`: print the steps that connect a client to a model server.

All facts are in `recipes.toml`. The docs page and the generator on the site use the same functions as the command.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, TypeVar

from attrs import frozen

from streamtool.cli.common import Screen
from streamtool.core.errors import SettingsError
from streamtool.settings.readers import nearest

PROXY = "http://127.0.0.1:8700"
"""Address of streamtool in all recipes: the default of `streamtool serve`."""
CONTEXT = 65536
"""Default size of the context in recipes, in tokens: enough for agents, whose first request may have 18,000."""
MODEL = re.compile(r"\w[\w.:\/@+\-]*", re.ASCII)
"""Names of models that need no quotes in a shell, JSON, TOML or YAML. The site uses the expression in JavaScript."""


@frozen
class RecipeStep:
    """A step of a client's recipe: shell commands, or with `file` the content of that file."""

    text: str
    file: str = ""
    note: str = ""
    """Where to use the file, if its path does not show it."""

    @property
    def language(self) -> str:
        """Language of the text: sh, json, toml or yaml."""
        return self.file.rpartition(".")[2] or "sh"


@frozen
class Server:
    """A model server: how to start it, and how streamtool reaches it."""

    name: str
    model: str
    """Example of a model name, as this server spells it."""
    upstream: str
    start: str
    source: Sequence[str]
    options: str = ""
    """More options of `streamtool serve`, after a space."""
    notes: str = ""


@frozen
class Client:
    """A client: the path of its requests, and the steps that point it to streamtool."""

    name: str
    path: str
    steps: Sequence[RecipeStep]
    source: Sequence[str]
    notes: str = ""


@frozen
class Recipes:
    """The content of `recipes.toml`, by the names that the command accepts."""

    serve: str
    """Command that starts streamtool, with placeholders."""
    servers: Mapping[str, Server]
    clients: Mapping[str, Client]


_Row = TypeVar("_Row", Server, Client)


@cache
def recipes() -> Recipes:
    """Return the recipes."""
    table: dict[str, Any] = tomllib.loads((files(__package__) / "recipes.toml").read_text(encoding="utf-8"))
    clients = [{**row, "steps": [RecipeStep(**_stripped(step)) for step in row["steps"]]} for row in table["client"]]
    return Recipes(
        table["serve"],
        _by_key(Server(**_stripped(row)) for row in table["server"]),
        _by_key(Client(**_stripped(row)) for row in clients),
    )


def run(client: str | None, server: str | None, model: str | None, context: int | None) -> None:
    """Print the steps for a client and a server, or without both the names of all. Raises SettingsError."""
    screen, known = Screen(), recipes()
    if client is None:
        for title, rows in (("client", known.clients), ("server", known.servers)):
            screen.line((f"{title:<12} ", "bold"), ("requests to", "bold"))
            for key, row in rows.items():
                screen.line((f"{key:<12} ", "bold cyan"), row.path if isinstance(row, Client) else row.upstream)
            screen.line()
        screen.line("streamtool recipe CLIENT SERVER [--model NAME] [--context TOKENS]")
        return
    wanted = find(client, known.clients, "client")
    if server is None:
        raise SettingsError(f"SERVER is missing: {', '.join(known.servers)}", param="SERVER")
    text = block(wanted, find(server, known.servers, "server"), model, context or CONTEXT)
    for line in text.splitlines():
        screen.line((line, "bold cyan") if line.startswith("# ") else line)


def find(word: str, rows: Mapping[str, _Row], kind: str) -> _Row:
    """Return the client or server with this name. Case and punctuation do not matter, and the beginning of a name is
    sufficient. Raises SettingsError for an unknown or ambiguous name.
    """
    plain = {_plain(key): row for key, row in rows.items()}
    begun = [row for name, row in plain.items() if name.startswith(_plain(word))] if _plain(word) else []
    if _plain(word) in plain:
        return plain[_plain(word)]
    if len(begun) == 1:
        return begun[0]
    raise SettingsError(f'unknown {kind} "{word}"; did you mean "{nearest(word, rows)}"?', param=kind.upper())


def block(client: Client, server: Server, model: str | None = None, context: int = CONTEXT) -> str:
    """Return all steps as numbered paragraphs, without a newline at the end. Raises SettingsError for a model name
    that would have to be quoted.
    """
    if model is not None and not MODEL.fullmatch(model):
        raise SettingsError(f"--model: expected letters, digits and .:/@+-_, found {model!r}", param="--model")
    return filled(f"{server_steps(server)}\n\n{client_steps(client)}", model or server.model, context)


def server_steps(server: Server) -> str:
    """Return the first two steps, which start the server and streamtool, with $model and $context."""
    return f"# 1. {server.name}\n{server.start}\n\n# 2. streamtool, in a second terminal\n{serve_command(server)}"


def serve_command(server: Server) -> str:
    """Return the command that starts streamtool, with $model and $context."""
    return Template(recipes().serve).safe_substitute(upstream=server.upstream, options=server.options)


def client_steps(client: Client) -> str:
    """Return the steps from the third on, which set up and start the client, with $model and $context."""
    return "\n\n".join(
        f"# {number}. {client.name}{_place(step)}\n{Template(step.text).safe_substitute(proxy=PROXY)}"
        for number, step in enumerate(client.steps, 3)
    )


def filled(text: str, model: str, context: int) -> str:
    """Return a text of steps with the model's name and its context in tokens."""
    return Template(text).substitute(model=model, context=context, proxy=PROXY)


def _place(step: RecipeStep) -> str:
    """Return where a step is carried out, for its heading."""
    if not step.file:
        return ", in a third terminal"
    return f": {step.file}" + (f" ({step.note})" if step.note else "")


def _stripped(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without newlines around its texts."""
    return {name: value.strip("\n") if isinstance(value, str) else value for name, value in row.items()}


def _by_key(rows: Iterable[_Row]) -> dict[str, _Row]:
    return {row.name.lower().replace(" ", "-"): row for row in rows}


def _plain(name: str) -> str:
    """Return a name without case, spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
