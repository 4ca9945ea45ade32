"""What the model reads: tools, past calls, results and the tool choice as text.

`project` turns a conversation with tools into one without; everything else here are its parts, each of use alone.
"""

from streamtool.prompting.history import calls_text, result_text
from streamtool.prompting.projection import project
from streamtool.prompting.tool_prompt import Contract, contract
from streamtool.prompting.transcripts import format_of, key, words
from streamtool.prompting.turn_instructions import choice_text, corrected

__all__ = [
    "Contract",
    "calls_text",
    "choice_text",
    "contract",
    "corrected",
    "format_of",
    "key",
    "project",
    "result_text",
    "words",
]
