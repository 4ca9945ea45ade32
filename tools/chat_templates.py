"""Renders chat templates over the messages that models get from us: which of them raise, and which lose text.

    python -m tools.chat_templates FOLDER

FOLDER holds templates (`*.jinja`); Jinja2 has to be installed. Each is rendered as transformers renders it, over
conversations that agents have: system messages in the middle, messages of the user in a row, results followed by words
of the user, an assistant that begins. First as the client sent them, then as they are projected. A template fails if it
raises an error or leaves a text out.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from streamtool.conversation import Conversation, Message, TextPart, Tool, ToolCall, ToolResult
from streamtool.prompting import project
from streamtool.protocols.chat import write_messages
from streamtool.settings import Settings

TOOL = Tool("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = ToolCall("c1", TOOL.name, '{"path": "notes.txt"}')


def said(role: Any, text: str) -> Message:
    return Message(role, (TextPart(text),))


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""The marks of what a model is trained on, which mean nothing here."""
CALLS = (
    Message("assistant", (TextPart("text four"),), (CALL,)),
    Message("user", results=(ToolResult("c1", (TextPart("text five"),)),)),
)
CONVERSATIONS: Mapping[str, tuple[Message, ...]] = {
    "a question": (said("system", "text one"), said("user", "text two")),
    "no system message": (said("user", "text one"), said("assistant", "text two"), said("user", "text three")),
    "a result": (said("system", "text one"), said("user", "text two"), *CALLS),
    "words behind a result": (said("user", "text one"), *CALLS, said("user", "text two")),
    "two questions in a row": (said("system", "text one"), said("user", "text two"), said("user", "text three")),
    "a system message in the middle": (
        said("user", "text one"),
        said("assistant", "text two"),
        said("system", "text three"),
        said("user", "text six"),
    ),
    "two system messages": (said("system", "text one"), said("system", "text two"), said("user", "text three")),
    "an assistant that begins": (said("assistant", "text one"), said("user", "text two")),
}


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """As transformers has it."""

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    made.globals.update(raise_exception=raise_exception, strftime_now=lambda form: form)
    return made


def failure(template: jinja2.Template, messages: list[Mapping[str, Any]], texts: list[str]) -> str:
    """Why the template fails; "": it does not."""
    try:
        prompt = template.render(messages=messages, add_generation_prompt=True, **TOKENS)
    except Exception as error:  # noqa: BLE001  whatever a template raises
        return f"raises: {error}"
    lost = [text for text in texts if text not in prompt]
    return f"loses {len(lost)} of {len(texts)} texts" if lost else ""


def failures(template: jinja2.Template, name: str, *, projected: bool) -> Iterator[str]:
    """What fails with this template, which belongs to the model `name`."""
    model = Settings().for_model(name)
    for what, messages in CONVERSATIONS.items():
        asked = Conversation("chat", name, messages, (TOOL,))
        made = project(asked, model, model.format) if projected else asked
        texts = [part.text for message in made.messages for part in message.content if isinstance(part, TextPart)]
        if found := failure(template, [dict(wired) for wired in write_messages(made.messages)], texts):
            yield f"{what}: {found}"


def main(folder: str) -> int:
    """Print the table; 1 if some template fails over projected messages."""
    before = after = count = 0
    for path in sorted(Path(folder).glob("*.jinja")):
        template = environment().from_string(GENERATION.sub("", path.read_text(encoding="utf-8")))
        name = path.stem.replace("_", "-")
        found = list(failures(template, name, projected=True))
        count += 1
        before += any(failures(template, name, projected=False))
        after += bool(found)
        for line in found:
            print(f"{path.stem}: {line}")
    print(f"{count} templates: {before} fail over what clients send, {after} over what is made of it")
    return bool(after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
