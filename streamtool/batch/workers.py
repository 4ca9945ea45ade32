"""The processes that read batches, and their results in the order of the batches."""

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
"""Batches that wait for each process, so that none has to wait for the disk."""
_reader: RecordReader
"""That of this process."""


def results(options: ReadingOptions, batches: Iterable[Batch], jobs: int) -> Iterator[Result]:
    """Those of all batches. No more than a few are in memory; for one batch no process is started."""
    rest = iter(batches)
    begins = list(islice(rest, 2))
    batches = chain(begins, rest)
    if jobs == 1 or len(begins) < 2:
        reader = RecordReader(options)
        yield from map(reader.read, batches)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin, (options,)) as pool:
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


def _begin(options: ReadingOptions) -> None:
    global _reader  # noqa: PLW0603  a process has one, and is told by what it is begun with
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    threading.Thread(target=_follow, daemon=True).start()
    _reader = RecordReader(options)


def _follow() -> None:
    """End with the parent, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read(batch: Batch) -> Result:
    return _reader.read(batch)
