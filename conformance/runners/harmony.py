"""OpenAI's own Harmony parser: `harmony:StreamableParser`. Needs openai-harmony and its vocabulary.

The vocabulary is the `o200k_base.tiktoken` file, which openai-harmony downloads. It is taken from the folder named by
`TIKTOKEN_ENCODINGS_BASE`, or from litellm if that is installed.
"""

import os
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from conformance.runners.reading import reader

VERSION = version("openai-harmony")
PARSERS = {"StreamableParser": "harmony"}
BROUGHT = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"


@cache
def encoding() -> Any:
    """Return the Harmony encoding."""
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        try:
            file = Path(str(distribution("litellm").locate_file(BROUGHT)))
        except PackageNotFoundError:
            file = Path()
        if file.is_file() and "TIKTOKEN_ENCODINGS_BASE" not in os.environ:
            Path(folder, "o200k_base.tiktoken").symlink_to(file)
            os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@cache
def tokens(text: str) -> list[int]:
    """Return the tokens in a delta, as a model would write them."""
    found: list[int] = encoding().encode(text, allowed_special="all")
    return found


class Run:
    """One reply. If the text does not begin its first message itself, the prompt is assumed to have begun that
    message.
    """

    def __init__(self, name: str, tools: Any, whole: str) -> None:  # noqa: ARG002  the signature of all runners
        import openai_harmony  # noqa: PLC0415

        role = None if whole.startswith("<|start|>") else openai_harmony.Role.ASSISTANT
        self.parser = getattr(openai_harmony, name)(encoding(), role)

    def feed(self, delta: str) -> int:
        """Feed a delta and return the number of argument characters that it yields."""
        known = 0
        for token in tokens(delta):
            self.parser.process(token)
            if self.parser.current_recipient:
                known += len(self.parser.last_content_delta or "")
        return known

    def close(self) -> dict[str, Any]:
        """Return the outcome: a message with a recipient is a call, a message on the `analysis` channel is reasoning,
        and any other message is text.
        """
        found: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}
        for message in self.parser.process_eos().messages:
            said = "".join(part.text for part in message.content)
            if message.recipient:
                found["calls"].append({"name": message.recipient.removeprefix("functions."), "arguments": said})
            else:
                found["reasoning" if message.channel == "analysis" else "text"] += said
        return found


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return reader(lambda tools, text: Run(name, tools, text))
