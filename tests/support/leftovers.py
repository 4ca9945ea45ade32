"""Possible leftovers of a run: child processes by pid, threads by name, tasks by the backend's own listing."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import sniffio
import trio
from support.forked import FORKERS


def children() -> list[int]:
    """Return the pids of this process's children that belong to one test."""
    listed = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            listed += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in listed if pid not in FORKERS and Path(f"/proc/{pid}").exists()]


def threads() -> list[str]:
    """Return the names of the threads that run a tool; idle threads of a pool have other names."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tool "))


def tasks() -> int:
    """Return the number of tasks that the backend lists."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())
