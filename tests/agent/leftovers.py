"""What a run might leave behind: child processes by pid, threads by name, tasks by the backend's own listing."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import sniffio
import trio


def children() -> list[int]:
    """The pids of this process's children."""
    listed = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            listed += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in listed if Path(f"/proc/{pid}").exists()]


def threads() -> list[str]:
    """The names of the threads that run a tool; idle ones of a pool have other names."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tool "))


def tasks() -> int:
    """How many tasks the backend lists."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())
