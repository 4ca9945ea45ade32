"""Embedded upstream: a small deterministic stand-in for a model that only writes text.

Its only input is the text of the prompt. It finds the tool prompt there, reads the tools from it in any of the list
styles, and learns the call format and the result frame from the example in the tool prompt (`lesson`). It then writes a
simple reply (`model`): first a sentence and a call; once results have arrived, a final answer that quotes them; if no
tools are offered, an echo. It follows the turn instructions (no call, a particular tool, exactly one call).

`reply` is the model, a pure function. `Sample` (`server`) serves it as an ASGI app for Chat Completions, streamed in
small pieces or as one document, so that everything else (the demo, the docs, the tests) can run without a network.
"""

from streamtool.sample.lesson import Lesson, OfferedTool, SampleParameter, learn, read_offers
from streamtool.sample.model import reply
from streamtool.sample.server import Sample, app

__all__ = ["Lesson", "OfferedTool", "Sample", "SampleParameter", "app", "learn", "read_offers", "reply"]
