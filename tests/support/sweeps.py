"""Sweeps: one test that loops over values, where `parametrize` would make a test of each value.

Pytest spends more time on a test than most values of a sweep take. Use `parametrize` where values are few, or differ in
their fixtures.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

POSITION: list[int] = []
"""The indexes of the current values, one for each sweep around the test."""


def each(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Callable[[Any], object] | Iterable[object] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run the test with each value in turn; it fails after the last one, with the errors of all.

    The arguments are those of `pytest.mark.parametrize`. Fixtures are set up once for all values.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    cases = [(value,) if len(names) == 1 else tuple(value) for value in values]
    labels = cases if ids is None or callable(ids) else [(one,) for one in ids]
    shown = ids if callable(ids) else repr if ids is None else str
    sweep = [(dict(zip(names, case, strict=True)), label) for case, label in zip(cases, labels, strict=True)]
    assert sweep, "no values"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            async def swept(*args: Any, **fixtures: Any) -> None:
                errors: list[Exception] = []
                for index, (given, label) in enumerate(sweep):
                    with collected(errors, index, names, map(shown, label)):
                        await test(*args, **fixtures, **given)
                report(errors, len(sweep))
        else:

            def swept(*args: Any, **fixtures: Any) -> None:
                errors: list[Exception] = []
                for index, (given, label) in enumerate(sweep):
                    with collected(errors, index, names, map(shown, label)):
                        test(*args, **fixtures, **given)
                report(errors, len(sweep))

        parameters = inspect.signature(test).parameters
        assert {*names} <= {*parameters}
        return like(test, swept, [one for name, one in parameters.items() if name not in names])

    return decorate


def halved(names: str, *axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize with every second combination of the values, and under `-m long` with the others.

    Every pair of values of two axes occurs if there is a third axis with at least two values.
    """
    combinations = []
    for chosen in itertools.product(*map(enumerate, axes)):
        indexes, values = zip(*chosen, strict=True)
        combinations.append(pytest.param(*values, marks=[pytest.mark.long] if sum(indexes) % 2 else []))
    return pytest.mark.parametrize(names, combinations)


def alternating(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run an `anyio` test on one backend for each combination of swept values; under `-m long`, on both.

    Neighbors run on different backends, so each backend has every value of a sweep if there are two sweeps.
    """

    async def alternated(*args: Any, anyio_backend: str, on_both: bool, **given: Any) -> None:
        if on_both or sum(POSITION) % 2 == (anyio_backend == "trio"):
            await test(*args, **given)

    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, kind) for name in ("anyio_backend", "on_both")]
    return like(test, alternated, [*inspect.signature(test).parameters.values(), *more])


def like(test: Callable[..., Any], made: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Give a function the name and the marks of a test, and these parameters."""
    made = wraps(test)(made)
    for name in [
        name for name in made.__dict__ if "hypothesis" in name
    ]:  # only the function inside is one of its tests
        del made.__dict__[name]
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return made


@contextmanager
def collected(errors: list[Exception], index: int, names: Iterable[str], label: Iterable[object]) -> Iterator[None]:
    """Collect the error of a value, with a note that names the value."""
    POSITION.append(index)
    try:
        yield
    except pytest.skip.Exception as error:
        raise AssertionError("a skipped value would skip the values after it") from error
    except Exception as error:
        error.add_note(f"{', '.join(names)}: {', '.join(map(str, label))}")
        errors.append(error)
    finally:
        POSITION.pop()


def report(errors: list[Exception], count: int) -> None:
    """Raise the only error, or all of them as a group."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {count} values fail", errors)
