"""Worker processes that read batches; results are returned in the order of the batches."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice

from streamtool.batch.reading import ReadingOptions, RecordReader, Result
from streamtool.batch.sources import Batch

_AHEAD = 2
"""Number of batches queued for each process, so that it never waits for the disk."""
_reader: RecordReader
"""Reader of this worker process."""


def read_batches(options: ReadingOptions, batches: Iterable[Batch], jobs: int) -> Iterator[Result]:
    """Yield the results of all batches in order. Only a few batches are in memory at a time. With only one batch or one
    job, no worker process is started.
    """
    rest = iter(batches)
    begins = list(islice(rest, 2))
    batches = chain(begins, rest)
    if jobs == 1 or len(begins) < 2:
        reader = RecordReader(options)
        yield from map(reader.read, batches)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _initialize, (options,)) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(_read, batch))
                if len(waiting) >= jobs * (1 + _AHEAD):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _initialize(options: ReadingOptions) -> None:
    global _reader  # noqa: PLW0603  each process has one, set by the pool's initializer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _reader = RecordReader(options)


def _exit_with_parent() -> None:
    """Wait until the parent process has exited, for whatever reason, and end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read(batch: Batch) -> Result:
    return _reader.read(batch)
