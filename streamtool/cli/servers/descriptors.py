"""How many connections the process has file descriptors for."""

import logging
from typing import Final

from attrs import evolve

from streamtool.settings import LimitSettings

_OWN: Final = 64
"""Descriptors that are needed apart from connections: files, the log, MCP servers."""

_log = logging.getLogger("streamtool")


def affordable(limits: LimitSettings) -> LimitSettings:
    """The same limits, with no more connections than the process can have.

    Each connection may need another one to the upstream. Without descriptors nobody could be served, or be told so. The
    soft limit of the process is raised as far as the settings ask and the hard limit allows.
    """
    wanted = limits.connections
    if not wanted:
        return limits
    try:
        import resource  # noqa: PLC0415  Windows has none
    except ImportError:
        return limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + _OWN
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == needed:
        return limits
    room = max(1, (soft - _OWN) // 2)
    _log.warning(
        "the process may open %d files (ulimit -n), so it takes %d connections, not %d (limits.connections)",
        soft, room, wanted,
    )  # fmt: skip
    return evolve(limits, connections=room)
