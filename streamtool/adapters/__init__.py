"""The parser where others keep theirs, in engines and frameworks. Each module imports one of them, nothing else does.

`openai_deltas` is for whoever writes a server: deltas of Chat Completions out of the model's text.
"""

from streamtool.adapters.deltas import Delta, OpenAIDeltas, openai_deltas

__all__ = ["Delta", "OpenAIDeltas", "openai_deltas"]
