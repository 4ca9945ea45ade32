"""The order of an evaluation, and when it ends."""

import random

from support.sweeps import each

from streamtool.evaluation.scenario import suite
from streamtool.evaluation.schedule import FEWEST, Schedule, order_of
from streamtool.evaluation.statistics import paired, wilson

GROUPS = {scenario.name: scenario.group for scenario in suite()}
ORDER = order_of(tuple(GROUPS), GROUPS, 1)


def simulated(shares: dict[str, float], seed: int, requests: int) -> tuple[Schedule, int]:
    """Return the schedule after this many requests to variants that are right with these probabilities, and the number
    of requests that it took.
    """
    chance = random.Random(seed)
    schedule = Schedule(tuple(shares), order_of(tuple(GROUPS), GROUPS, seed))
    for request in range(requests):
        asked = schedule.next()
        if asked is None:
            return schedule, request
        schedule.add(asked[0], right=chance.random() < shares[asked[0]])
    return schedule, requests


@each("variants", [6, 9, 12])
def test_the_best_of_several_variants_is_found_in_200_requests_in_95_of_100_seeds(variants: int):
    found = 0
    for seed in range(100):
        chance = random.Random(seed)
        shares = {f"format {n}": chance.uniform(0.2, 0.6) for n in range(variants)}
        best = chance.choice(list(shares))
        shares[best] = 0.9
        found += simulated(shares, seed, 200)[0].best == best
    assert found >= 95


def test_equal_variants_are_seldom_told_apart():
    wrong = 0
    for seed in range(100):
        schedule, _ = simulated({"one": 0.6, "other": 0.6}, seed, 200)
        one, other = schedule.results.values()
        wrong += paired(one[: len(other)], other[: len(one)]) <= 0.05
    assert wrong <= 10


def test_a_clear_order_ends_the_evaluation_early():
    schedule, requests = simulated({"one": 1.0, "other": 0.0}, 1, 200)
    assert schedule.decided
    assert requests == 2 * FEWEST


def test_every_group_is_represented_in_the_first_scenarios():
    assert sorted(ORDER) == sorted(GROUPS)
    assert ORDER == order_of(tuple(GROUPS), GROUPS, 1) != order_of(tuple(GROUPS), GROUPS, 2)
    first = {GROUPS[name] for name in ORDER[: len(ORDER) // 3]}
    assert first == set(GROUPS.values())


def test_all_variants_answer_the_same_scenarios():
    schedule = Schedule(("a", "b", "c"), ORDER)
    asked = []
    while len(asked) < 9:
        found = schedule.next()
        assert found is not None
        asked.append(found)
        schedule.add(found[0], right=True)
    assert asked == [(variant, name) for name in ORDER[:3] for variant in ("a", "b", "c")]


def test_an_interval_and_a_paired_test_have_known_values():
    # R. G. Newcombe, Statistics in Medicine 17 (1998), pages 857–872, table I, method 3
    published = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611)}
    assert {case: tuple(round(limit, 4) for limit in wilson(*case)) for case in published} == published
    assert wilson(0, 0) == (0.0, 1.0)
    one = [True] * 9 + [False] * 2 + [True] * 20
    other = [False] * 9 + [True] * 2 + [True] * 20
    assert round(paired(one, other), 4) == round(2 * (1 + 11 + 55) / 2**11, 4)
    assert paired(one, one) == 1.0
