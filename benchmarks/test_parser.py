"""The workloads of `streamtool bench` under pytest-benchmark: `pytest benchmarks`, to compare two revisions.

These benchmarks only measure; `tests/statemachine/test_parser_scaling.py` verifies that the cost per character does not
grow with the length.
"""

import pytest

from streamtool.bench import Workload, pieces, start_parser, workloads


@pytest.mark.parametrize("work", list(workloads(16_000)), ids=lambda work: work.name)
def test_deltas_of_four_characters(benchmark, work: Workload):
    """Measure one reply in deltas of four characters."""
    deltas = pieces(work.text)

    def read() -> None:
        feed = start_parser(work).feed
        for delta in deltas:
            feed(delta)

    benchmark(read)


@pytest.mark.parametrize("work", list(workloads(16_000)), ids=lambda work: work.name)
def test_one_large_delta(benchmark, work: Workload):
    """Measure the same reply in one delta."""
    benchmark(lambda: start_parser(work).feed(work.text))
