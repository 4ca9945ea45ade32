"""The workloads of `streamtool bench` under pytest-benchmark: `pytest benchmarks`, to compare two revisions.

Measured here, never asserted: that the cost does not grow with the length is a test (`tests/test_parser_scaling.py`).
"""

import pytest

from streamtool.bench import Workload, pieces, started, workloads


@pytest.mark.parametrize("work", list(workloads(16_000)), ids=lambda work: work.name)
def test_deltas_of_four_characters(benchmark, work: Workload):
    """One reply in deltas of four characters."""
    deltas = pieces(work.text)

    def read() -> None:
        feed = started(work).feed
        for delta in deltas:
            feed(delta)

    benchmark(read)


@pytest.mark.parametrize("work", list(workloads(16_000)), ids=lambda work: work.name)
def test_one_large_delta(benchmark, work: Workload):
    """The same reply in one delta."""
    benchmark(lambda: started(work).feed(work.text))
