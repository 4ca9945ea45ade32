"""Moves a server's memory to huge pages, after everything has been loaded.

A request touches thousands of small objects all over the heap. With pages of 4 KB, the processor has to look up the
address of nearly each of them in the page tables; with pages of 2 MB, it finds them in its cache (the TLB). In a
virtual machine, where each lookup takes several, that is 5 to 9 % of the CPU time of a request
(`benchmarks/request.py`, two servers in turns). Other machines were not measured.

Linux does this by itself only if `/sys/kernel/mm/transparent_hugepage/enabled` contains `[always]`. Source: madvise(2),
`MADV_COLLAPSE`.
"""

import ctypes
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_COLLAPSE: Final = 25
"""`MADV_COLLAPSE`, since Linux 6.1. An older kernel rejects it, and nothing changes."""
_HUGE: Final = 2 * 1024 * 1024
"""Size in bytes of a huge page. Where it is larger, as on some ARM machines, the kernel leaves out what is smaller."""
_OWN: Final = 0.75
"""Minimum part of a mapping that is in memory, and not shared with another process; the rest of it is then allocated,
too. This leaves out the stacks of threads, which are nearly empty, and what a worker still shares with its parent.
"""
_OBJECT: Final = 512
"""Maximum size in bytes of an object that CPython allocates in its own arenas (`SMALL_REQUEST_THRESHOLD`)."""
_ARENA: Final = 1024 * 1024
"""Size in bytes of an arena, which is returned to the system once no object in it is left (`ARENA_SIZE`)."""
_POLICY: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS: Final = Path("/proc/self/smaps")
_find_heaps: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?\n(?:.*\n)*?Private_Dirty: +(\d+) kB$", re.MULTILINE
).finditer


_reserved: Final[list[bytes]] = []
"""An object in each reserved arena."""


def use_huge_pages(reserve: int = 0) -> None:
    """Move the memory that this process uses now to huge pages, unless the system forbids or lacks them. `reserve` is
    the size in bytes of further memory for small objects that are created later. This took 20 to 260 ms for 60 MB,
    during which no thread of the process can allocate memory.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # no such file, or a C library without `madvise`
        if "[never]" in _POLICY.read_text(encoding="ascii"):
            return
        # The arenas of these objects stay, because an object in each of them does.
        objects = [bytes(_OBJECT - sys.getsizeof(b"")) for _ in range(reserve // _OBJECT)]
        _reserved.extend(objects[:: _ARENA // _OBJECT // 2])
        del objects
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for begin, size in heaps(_MAPPINGS.read_text(encoding="utf-8", errors="replace")):
            madvise(begin, size, _COLLAPSE)  # failures do not matter: the memory then stays where it is


def heaps(mappings: str) -> Iterator[tuple[int, int]]:
    """Yield the address and the size of each private mapping of memory that is large enough and mostly in use, aligned
    to huge pages. `mappings` is the content of `/proc/self/smaps`.
    """
    for found in _find_heaps(mappings):
        begin, end, own = int(found[1], 16), int(found[2], 16), int(found[3]) * 1024
        if own >= _OWN * (end - begin):
            begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if begin < end:
                yield begin, end - begin
