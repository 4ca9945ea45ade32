"""The embedded upstream: a small deterministic stand-in for a model that only writes text.

It is honest: all it knows is the text of its prompt. It finds the contract there, reads the tools out of it in
whatever style they are listed, learns the form of a call and the frame of a result from the contract's own example
(`lesson`), and then plays a plain turn (`model`): a sentence and a call first, a final answer that quotes the results
when they have come, an echo when there are no tools. The sentences of the tail (no call, a certain tool, exactly one)
are obeyed.

`reply` is the model, a pure function. `Sample` (`server`) serves it as an ASGI app that speaks Chat Completions,
streamed in small pieces or whole, so that everything else can run without network: the demo, the docs, the tests.
"""

from streamtool.sample.lesson import Lesson, OfferedTool, SampleParameter, learn, read_offers
from streamtool.sample.model import reply
from streamtool.sample.server import Sample, app

__all__ = ["Lesson", "OfferedTool", "Sample", "SampleParameter", "app", "learn", "read_offers", "reply"]
