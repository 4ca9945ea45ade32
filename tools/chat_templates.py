"""Render chat templates with streamtool's messages, and report which raise an error and which lose text.

    python -m tools.chat_templates FOLDER

FOLDER contains templates (`*.jinja`); Jinja2 must be installed. Each template is rendered as in transformers, over
typical agent conversations: later system messages, consecutive user messages, results followed by user text, an
assistant message at the beginning. Each conversation is rendered as the client sent it, and then as projected. A
template fails if it raises an error or omits text.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from streamtool.core.conversation import Conversation, Message, TextPart, Tool, ToolCall, ToolResult
from streamtool.prompting import project
from streamtool.protocols.chat import write_messages
from streamtool.settings import Settings

TOOL = Tool("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = ToolCall("c1", TOOL.name, '{"path": "notes.txt"}')


def said(role: Any, text: str) -> Message:
    return Message(role, (TextPart(text),))


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Matches tags that mark training data, which have no effect here."""
CALLS = (
    Message("assistant", (TextPart("text four"),), (CALL,)),
    Message("user", results=(ToolResult("c1", (TextPart("text five"),)),)),
)
CONVERSATIONS: Mapping[str, tuple[Message, ...]] = {
    "a question": (said("system", "text one"), said("user", "text two")),
    "no system message": (said("user", "text one"), said("assistant", "text two"), said("user", "text three")),
    "a result": (said("system", "text one"), said("user", "text two"), *CALLS),
    "user text after a result": (said("user", "text one"), *CALLS, said("user", "text two")),
    "two consecutive questions": (said("system", "text one"), said("user", "text two"), said("user", "text three")),
    "a system message in the middle": (
        said("user", "text one"),
        said("assistant", "text two"),
        said("system", "text three"),
        said("user", "text six"),
    ),
    "two system messages": (said("system", "text one"), said("system", "text two"), said("user", "text three")),
    "an assistant message at the beginning": (said("assistant", "text one"), said("user", "text two")),
}


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Create the Jinja environment that transformers uses."""

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    made.globals.update(raise_exception=raise_exception, strftime_now=lambda form: form)
    return made


def failure(template: jinja2.Template, messages: list[Mapping[str, Any]], texts: list[str]) -> str:
    """Return the reason the template fails, or an empty string if it does not."""
    try:
        prompt = template.render(messages=messages, add_generation_prompt=True, **TOKENS)
    except Exception as error:  # noqa: BLE001  a template can raise anything
        return f"raises: {error}"
    lost = [text for text in texts if text not in prompt]
    return f"loses {len(lost)} of {len(texts)} pieces of text" if lost else ""


def failures(template: jinja2.Template, name: str, *, projected: bool) -> Iterator[str]:
    """Yield the failures of this template, which belongs to the model `name`."""
    model = Settings().for_model(name)
    for what, messages in CONVERSATIONS.items():
        asked = Conversation("chat", name, messages, (TOOL,))
        made = project(asked, model, model.format) if projected else asked
        texts = [part.text for message in made.messages for part in message.content if isinstance(part, TextPart)]
        if found := failure(template, [dict(wired) for wired in write_messages(made.messages)], texts):
            yield f"{what}: {found}"


def main(folder: str) -> int:
    """Print the table and return 1 if any template fails on projected messages."""
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
    print(f"{count} templates: {before} fail on the original messages, {after} on projected ones")
    return bool(after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
