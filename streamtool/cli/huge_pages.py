"""Moves a server's memory to huge pages, after everything has been loaded.

A request touches thousands of small objects all over the heap. With pages of 4 KB, the processor has to look up the
address of nearly each of them in the page tables; with pages of 2 MB, it finds them in its cache (the TLB). In a
virtual machine, where each lookup takes several, that is 5 to 9 % of the CPU time of a request
(`benchmarks/request.py`, two servers in turns). Other machines were not measured.

Objects that are created later are on other pages. `reserve` allocates memory for them before it is moved.

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
_OBJECT: Final = 448
"""Approximate size in bytes of the objects that fill the reserved memory at first."""
_POLICY: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS: Final = Path("/proc/self/smaps")
_reserved: Final[list[bytes]] = []
"""The objects that keep the reserved memory."""
_find_heaps: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?\n(?:.*\n)*?Private_Dirty: +(\d+) kB$", re.MULTILINE
).finditer


def reserve(size: int) -> None:
    """Allocate memory for small objects that are created later, so that they cause no page faults. It is never returned
    to the system.
    """
    # CPython allocates objects of up to 512 bytes in arenas of 1 MB, and returns an arena once it contains no object
    # (`SMALL_REQUEST_THRESHOLD` and `ARENA_SIZE` in its Objects/obmalloc.c). So one object in each half is kept.
    objects = [bytes(_OBJECT) for _ in range(size // _OBJECT)]
    _reserved.extend(objects[:: 512 * 1024 // _OBJECT])


def use_huge_pages() -> None:
    """Move the memory that this process uses now to huge pages, unless the system forbids or lacks them. This took
    20 to 260 ms for 60 MB, during which no thread of the process can allocate memory.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # no such file, or a C library without `madvise`
        if "[never]" in _POLICY.read_text(encoding="ascii"):
            return
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
