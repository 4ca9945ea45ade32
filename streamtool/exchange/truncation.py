"""Detection of prompts that the upstream cut, although it replied as if it had read all of them.

The upstream's own count of prompt tokens is compared with a number that the prompt has at least (`least_tokens`). Words
are a safe measure: the text with the fewest tokens per word has slightly more than one. Characters are not, because a
run of spaces or dashes is a single token. A quarter is allowed for chat templates that drop text, such as the system
message.

Servers that reject such prompts are not checked, and neither are those that count only the tokens that they had not
cached.
"""

import re
from collections.abc import Callable
from typing import Final

from streamtool.core.conversation import Conversation
from streamtool.core.reply import Usage
from streamtool.exchange.plan import Plan
from streamtool.exchange.record import PromptCut
from streamtool.prompting.window import least_tokens

_PROTOCOLS: Final = ("chat", "completions", "ollama")
"""Protocols of the servers that cut prompts."""
_BYTES: Final = 5
"""The prompt is counted if it has more bytes than this for each token that the upstream reports."""
_FEWEST: Final = 512
"""The shortest prompt that is checked, in tokens."""
_MARGIN: Final = 0.75
"""The share of the prompt that the upstream must have read."""
_FIX: Final = "start the model's server with a larger context window"


def prompt_cut(plan: Plan, usage: Usage, made: Callable[[], Conversation | None], *, sent: int) -> PromptCut | None:
    """Return how much of the prompt the upstream read, or None if it read all of it as far as is known. `made` returns
    the prompt, and `sent` is the size of the request in bytes.
    """
    read = usage.input
    if usage.estimated or not read or sent < _BYTES * read or not _checks(plan):
        return None
    prompt = made()
    if prompt is None:
        return None
    least = least_tokens(prompt)
    if least < _FEWEST or read >= _MARGIN * least:
        return None
    engine = plan.model.engine
    return PromptCut(read, least, _FIX if engine is None else engine.engine.fix)


def _checks(plan: Plan) -> bool:
    """Return whether the upstream may cut prompts, and counts the tokens of the whole prompt."""
    protocol, found = plan.upstream.NAME, plan.model.engine
    if found is None:  # old versions of Ollama omit cached tokens
        return protocol in _PROTOCOLS and protocol != "ollama"
    uncached = found.engine.uncached
    return found.engine.truncates and not (uncached and re.fullmatch(uncached, found.version))
