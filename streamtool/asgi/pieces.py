"""Methods that our own parts offer one another in addition to ASGI, so that a request needs fewer coroutines and tasks.

ASGI's `send` is a coroutine function. For each piece of a stream, it costs a coroutine in every layer and, between the
upstream's connection and the task that reads from it, a future and another iteration of the event loop. Most pieces
never have to wait, so a plain call can do the same work: if `send` is a method of one of our objects, that object may
offer some of the methods below. A wrapper around `send` hides them, so nothing that changes messages is bypassed.

- `take_piece` (an exchange, offered to the upstream): processes a piece. If something is left to be done, it returns a
  coroutine that has to be awaited before the next message.
- `write_now` (a server's response, offered to the exchange): writes a piece, or returns False if `send` has to wait.
- `on_disconnect` (also a server's response): sets the function to call when the client disconnects before the response
  is complete. Otherwise, a task has to wait for that. Servers on asyncio only.
- `take_body` (a server's request, offered to whatever reads its body with `receive`): returns the whole body if it has
  arrived, or None. Nothing has to be awaited then, so no time limit is needed.

The calls may come from the event loop itself, outside any task, and in the context of another request.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from streamtool.asgi.types import Receive, Send

TakePiece = Callable[[bytes], Coroutine[Any, Any, None] | None]
WriteNow = Callable[[bytes], bool]
OnDisconnect = Callable[[Callable[[], object] | None], None]


def taker_of(send: Send) -> TakePiece:
    """Return the receiver's `take_piece`. If it does not offer one, return a function that uses its `write_now` if
    possible, and `send` otherwise. The response must have begun.
    """
    offered: TakePiece | None = getattr(getattr(send, "__self__", None), "take_piece", None)
    write_now = writer_of(send)

    def take(piece: bytes) -> Coroutine[Any, Any, None] | None:
        if write_now is not None and write_now(piece):
            return None
        return send({"type": "http.response.body", "body": piece, "more_body": True})  # type: ignore[return-value]

    return offered or take


def writer_of(send: Send) -> WriteNow | None:
    """Return the receiver's `write_now`, if it offers one."""
    offered: WriteNow | None = getattr(getattr(send, "__self__", None), "write_now", None)
    return offered


def disconnects_of(send: Send) -> OnDisconnect | None:
    """Return the receiver's `on_disconnect`, if it offers one."""
    offered: OnDisconnect | None = getattr(getattr(send, "__self__", None), "on_disconnect", None)
    return offered


def body_of(receive: Receive) -> bytes | None:
    """Return the whole body, or None if it has not arrived or if the sender does not offer `take_body`."""
    take: Callable[[], bytes | None] | None = getattr(getattr(receive, "__self__", None), "take_body", None)
    return None if take is None else take()
