"""Adapters that replace the parser of an inference engine or framework, one module for each.

`openai_deltas` is for your own servers: it turns the model's text into Chat Completions deltas.
"""

from streamtool.adapters.deltas import Delta, OpenAIDeltas, openai_deltas

__all__ = ["Delta", "OpenAIDeltas", "openai_deltas"]
