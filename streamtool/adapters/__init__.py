"""Adapters that use the parser in place of the one in an engine or framework. Each module is for one of them.

`openai_deltas` is for your own servers: it turns the model's text into Chat Completions deltas.
"""

from streamtool.adapters.deltas import Delta, OpenAIDeltas, openai_deltas

__all__ = ["Delta", "OpenAIDeltas", "openai_deltas"]
