"""Measures the memory of an open stream: `open_streams.py N` opens N slow streams through streamtool and as many
through a bare proxy.

The figures are the resident memory of the proxy process, sockets included, as an operator sees it. Each stream has
received 25 deltas and waits for the next one. Linux only.
"""

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from common import CLIENTS, KINDS, Row, Table, request
from proxy import STOP, Served, started

DELTAS = 25
TOOLS = 20
REACH = 32
"""Maximum memory beyond the bare proxy's, in KB."""
TIMEOUT = 60.0
SETTLE = 5.0
"""Seconds in which all streams receive their deltas."""


def resident(served: Served) -> int:
    """Return the resident memory of the process in KB."""
    status = Path(f"/proc/{served.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


@contextmanager
def opened(served: Served, client: str, kind: str, count: int) -> Iterator[None]:
    """Open `count` streams that pause after their first deltas, and read these deltas."""
    model = f"{kind}-{DELTAS}-{STOP}"
    path, body = CLIENTS[client].replace("/m:", f"/{model}:"), request(client, TOOLS, model)
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with ExitStack() as stack:
        socks = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=TIMEOUT))
            sock.sendall(head % (path.encode(), len(body)) + body)
            socks.append(sock)
        for sock in socks:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 "), client
        time.sleep(SETTLE)  # some protocols send a call's arguments only at its end, so its deltas cannot be counted
        for sock in socks:
            sock.setblocking(False)
            with suppress(BlockingIOError):
                while sock.recv(65536):
                    pass
        time.sleep(1)
        yield


def main(count: int = 500) -> None:
    """Print the table."""
    rows = []
    for kind in KINDS:
        costs = {}
        for name, client in (("bare", "chat"), *(("proxy", client) for client in CLIENTS)):
            with started("upstream") as source, started(name, source.url) as served:
                with opened(served, client, kind, 50):
                    pass  # create everything that exists only once
                before = resident(served)
                with opened(served, client, kind, count):
                    costs[name, client] = (resident(served) - before) / count
        base = costs["bare", "chat"]
        rows += [
            Row((*who, kind, f"{cost:.1f}", f"{cost - base:.1f}"), f"{REACH}", cost - base <= REACH)
            for who, cost in costs.items()
        ]
    columns = ("process", "client", "kind", "KB", "above bare")
    Table(f"Memory of one of {count} open streams", columns, rows).show()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
