"""Generate the synchronous transport from the asynchronous one.

python tools/sync_transport.py      write the module
"""

import re
import subprocess
import sys
from pathlib import Path

TRANSPORT = Path(__file__).resolve().parent.parent / "streamtool" / "transport"
SOURCE = TRANSPORT / "asynchronous.py"
TARGET = TRANSPORT / "synchronous.py"
HEADER = "# Generated from asynchronous.py by tools/sync_transport.py. Change that module, not this one.\n"

SYNCHRONOUS = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncByteStream": "SyncByteStream",
    "AsyncHTTPTransport": "HTTPTransport",
    "AsyncIterator": "Iterator",
    "AsyncReply": "SyncReply",
    "StopAsyncIteration": "StopIteration",
    "ToolTransport": "SyncToolTransport",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aiter": "iter",
    "anext": "next",
    "aread": "read",
    "asynchronous": "synchronous",
    "close_async": "close_sync",
    "drain_async": "drain_sync",
    "linger_async": "linger_sync",
    "use_async": "use_sync",
    "close_store_async": "close_store_sync",
    "handle_async_request": "handle_request",
    "send_async": "send_sync",
}
"""Name in the source → its synchronous counterpart. `async` and `await` are removed."""

_WORD = re.compile(r"\b(?:async |await )|\b(?:" + "|".join(SYNCHRONOUS) + r")\b")


def synchronous() -> str:
    """Return the formatted source of the synchronous module."""
    code = _WORD.sub(lambda word: SYNCHRONOUS.get(word[0], ""), SOURCE.read_text(encoding="utf-8"))
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(ruff, input=HEADER + code, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    TARGET.write_text(synchronous(), encoding="utf-8")
