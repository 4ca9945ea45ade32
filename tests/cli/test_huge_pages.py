"""A server's memory is moved to huge pages once it is ready."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamtool.cli import huge_pages

HUGE = 2 * 1024 * 1024


def mapping(begin: int, size: int, own: int, *, name: str = "", flags: str = "rw-p") -> str:
    """Return a mapping as `/proc/self/smaps` describes it; sizes are in bytes."""
    lines = (
        f"{begin:x}-{begin + size:x} {flags} 00000000 00:00 0 {' ' * 20 + name if name else ''}",
        f"Size: {size // 1024:>12} kB",
        f"Rss: {own // 1024:>12} kB",
        f"Private_Clean: {0:>8} kB",
        f"Private_Dirty: {own // 1024:>8} kB",
        "VmFlags: rd wr mr mw me ac",
    )
    return "".join(f"{line}\n" for line in lines)


def huge_pages_are_available() -> bool:
    policy = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not policy.exists() or "[never]" in policy.read_text():
        return False
    return tuple(map(int, re.findall(r"\d+", Path("/proc/sys/kernel/osrelease").read_text())[:2])) >= (6, 1)


@pytest.mark.parametrize(
    ("mappings", "found"),
    [
        (mapping(HUGE, 2 * HUGE, 2 * HUGE), [(HUGE, 2 * HUGE)]),
        (mapping(HUGE - 4096, 2 * HUGE, 2 * HUGE, name="[heap]"), [(HUGE, HUGE)]),
        (mapping(HUGE - 4096, HUGE, HUGE), []),  # no huge page fits
        (mapping(HUGE, 4 * HUGE, HUGE), []),  # mostly unused, or shared with another process
        (mapping(HUGE, HUGE, HUGE, flags="r-xp"), []),
        (mapping(HUGE, HUGE, HUGE, name="/usr/lib/libc.so.6"), []),
        (mapping(HUGE, HUGE, HUGE, name="[stack]"), []),
        (mapping(HUGE, HUGE, HUGE) + mapping(4 * HUGE, HUGE, HUGE), [(HUGE, HUGE), (4 * HUGE, HUGE)]),
        (mapping(HUGE, HUGE, HUGE, flags="r--p") + mapping(4 * HUGE, HUGE, HUGE), [(4 * HUGE, HUGE)]),
        ("", []),
    ],
)
def test_only_memory_that_is_in_use_is_moved(mappings: str, found: list[tuple[int, int]]):
    assert list(huge_pages.heaps(mappings)) == found


def test_nothing_happens_where_huge_pages_are_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    policy = tmp_path / "enabled"
    policy.write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "_POLICY", policy)
    monkeypatch.setattr(huge_pages, "_MAPPINGS", tmp_path / "not read")
    huge_pages.use_huge_pages()
    monkeypatch.setattr(huge_pages, "_POLICY", tmp_path / "missing")
    huge_pages.use_huge_pages()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_memory_keeps_its_content():
    code = """
from streamtool.cli.huge_pages import use_huge_pages
kept = [bytes([n % 256]) * 5000 for n in range(4000)]
use_huge_pages()
assert all(one == bytes([n % 256]) * 5000 for n, one in enumerate(kept))
print(open("/proc/self/smaps_rollup").read())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = re.search(r"AnonHugePages: +(\d+) kB", done.stdout)
    if found and huge_pages_are_available():
        assert int(found[1]) >= HUGE // 1024


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_reserved_memory_takes_small_objects_without_page_faults():
    code = """
from resource import RUSAGE_SELF, getrusage
from streamtool.cli.huge_pages import reserve
reserve({size})
before = getrusage(RUSAGE_SELF).ru_minflt
kept = [bytes(250) for _ in range(20_000)]
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""
    faults = [
        int(subprocess.run([sys.executable, "-c", code.format(size=size)], capture_output=True, check=True).stdout)
        for size in (0, 8 * 1024 * 1024)
    ]
    assert faults[0] > 4 * faults[1]
