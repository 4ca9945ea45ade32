"""Text in, events out, piece by piece: the buffer, runs of text, the emitter, and the reader that connects them."""
