"""What the model reads: tools, past calls, results and the tool choice as text.

`project` turns a conversation with tools into one without; everything else here are its parts, each of use alone.
"""

from streamtool.prompting.choice import choice_text
from streamtool.prompting.contracts import Contract, contract
from streamtool.prompting.history import calls_text, result_text
from streamtool.prompting.projection import project
from streamtool.prompting.verbatim import key, words

__all__ = ["Contract", "calls_text", "choice_text", "contract", "key", "project", "result_text", "words"]
