"""Python functions as tools: schemas from signatures, annotations and docstrings; arguments converted; any return
value.
"""

import enum
import functools
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, TypedDict

import anyio.lowlevel
import msgspec
import pydantic
import pytest

from streamtool.agent import FunctionTool, tool
from streamtool.core.errors import SettingsError

both = pytest.mark.anyio


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclass
class Place:
    city: str
    country: str = "FR"


class Entry(TypedDict):
    text: str


class Model(pydantic.BaseModel):
    x: int


def forecast(
    place: Place,
    days: Annotated[int, "How many days"],
    unit: Unit = Unit.C,
    *,
    since: date | None = None,
    kind: Literal["short", "long"] = "short",
    tags: list[str] = [],  # noqa: B006
    entries: list[Entry] | None = None,
    anything: Any = None,
) -> dict[str, object]:
    """The weather to come.

    Looks it up.

    Args:
        place: Where,
            exactly.
        unit (Unit): Which scale.
        kind: How much of it

    Returns:
        A forecast.
    """
    return {
        "place": f"{place.city} in {place.country}",
        "days": days,
        "unit": unit,
        "since": since,
        "kind": kind,
        "tags": tags,
    }


async def progressed(done: float, total: float | None, message: str | None) -> None:
    raise AssertionError("functions tell no progress")


async def call(function: Any, **arguments: object) -> str:
    made = function if isinstance(function, FunctionTool) else tool(function, name="f")
    return (await made.call(arguments, progressed)).content[0].text  # type: ignore[union-attr]


def test_a_signature_becomes_a_schema():
    made = FunctionTool(forecast)
    assert (made.name, made.description) == ("forecast", "The weather to come.\n\nLooks it up.")
    place = {"title": "Place", "type": "object", "required": ["city"]}
    place["properties"] = {"city": {"type": "string"}, "country": {"type": "string", "default": "FR"}}
    assert made.parameters == {
        "type": "object",
        "properties": {
            "place": {"description": "Where, exactly.", "$ref": "#/$defs/Place"},
            "days": {"description": "How many days", "type": "integer"},
            "unit": {"description": "Which scale.", "$ref": "#/$defs/Unit", "default": "celsius"},
            "since": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None},
            "kind": {"description": "How much of it", "enum": ["long", "short"], "default": "short"},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
            "entries": {
                "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Entry"}}, {"type": "null"}],
                "default": None,
            },
            "anything": {"default": None},
        },
        "required": ["place", "days"],
        "additionalProperties": False,
        "$defs": {
            "Place": place,
            "Unit": {"title": "Unit", "enum": ["celsius", "fahrenheit"]},
            "Entry": {
                "title": "Entry",
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        },
    }


@both
async def test_arguments_are_converted_to_the_annotated_types():
    seen = await call(forecast, place={"city": "Paris"}, days=2, unit="fahrenheit", since="2026-01-31", tags=["a"])
    assert msgspec.json.decode(seen) == {
        "place": "Paris in FR",
        "days": 2,
        "unit": "fahrenheit",
        "since": "2026-01-31",
        "kind": "short",
        "tags": ["a"],
    }
    with pytest.raises(ValueError, match=r"Expected `int`, got `str` - at `\$\.days`"):
        await call(forecast, place={"city": "Paris"}, days="two")
    with pytest.raises(ValueError, match="unknown field"):
        await call(forecast, place={"city": "Paris"}, days=2, colour="red")


@both
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("text", "text"),
        (None, "null"),
        (b"a line\n", "a line\n"),
        (b"\xff\x00", '"/wA="'),
        ("half \ud83d", "half \ufffd"),
        ({"a": (1, 2.5)}, '{"a":[1,2.5]}'),
        (date(2026, 1, 31), '"2026-01-31"'),
        (Model(x=1), '{"x":1}'),
        ([object], "[\"<class 'object'>\"]"),
        ({(1, 2): 3}, None),
    ],
)
async def test_return_values_become_text(value, told):
    found = await call(lambda: value)
    assert found == told if told is not None else found


@both
async def test_any_callable_can_be_a_tool():
    def positional(a: int, /, b: int = 5) -> int:
        return a * b

    async def later(a: int) -> int:
        await anyio.lowlevel.checkpoint()
        return a + 1

    class Adder:
        """Adds."""

        def __call__(self, a: int, b: int) -> int:
            return a + b

    class Slow:
        async def __call__(self, a: int) -> int:
            return a

    assert await call(positional, a=3) == "15"
    assert await call(later, a=1) == "2"
    assert await call(functools.partial(later, a=7)) == "8"
    assert await call(Adder(), a=1, b=2) == "3"
    assert await call(Slow(), a=4) == "4"
    assert FunctionTool(Adder()).name == "Adder"
    assert FunctionTool(Adder()).parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert await call(lambda x: x, x=[1]) == "[1]"


@both
async def test_pydantic_models_are_supported():
    def use(model: Model, more: list[Model] | None = None) -> int:
        return model.x + len(more or [])

    assert FunctionTool(use).parameters["properties"]["model"]["properties"] == {"x": {"title": "X", "type": "integer"}}
    assert await call(use, model={"x": 4}) == "4"
    with pytest.raises(ValueError, match="int_parsing"):
        await call(use, model={"x": "four"})


def test_other_ways_to_describe_parameters():
    def sphinx(a: int, b: str = "x"):
        """Does it.

        :param a: the first
            of all
        :param str b: the second
        :returns: nothing
        """

    assert FunctionTool(sphinx).description == "Does it."
    assert FunctionTool(sphinx).parameters["properties"] == {
        "a": {"description": "the first of all", "type": "integer"},
        "b": {"description": "the second", "type": "string", "default": "x"},
    }

    def bounded(n: Annotated[int, msgspec.Meta(ge=1, le=9)], m: Annotated[str, msgspec.Meta(description="its own")]):
        """Args:
        n: how many
        m: not this
        """

    assert FunctionTool(bounded).description == ""
    assert FunctionTool(bounded).parameters["properties"] == {
        "n": {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many"},
        "m": {"type": "string", "description": "its own"},
    }
    made = tool(bounded, name="x.y", description="Mine.", timeout=3)
    assert (made.name, made.description, made.timeout) == ("x.y", "Mine.", 3)


def test_unsupported_signatures_are_errors():
    def many(*args: int) -> None: ...

    def named(**options: int) -> None: ...

    def odd(x: "threading.Thread") -> None: ...  # noqa: F821

    class Strange: ...

    def strange(x: Strange) -> None: ...

    def one_by_one():
        yield 1

    async def as_they_come():
        yield 1

    for generator in (one_by_one, as_they_come):
        with pytest.raises(SettingsError, match=f"the tool {generator.__name__} is a generator"):
            FunctionTool(generator)
    with pytest.raises(SettingsError, match="a lambda has no usable name"):
        FunctionTool(lambda: 1)
    with pytest.raises(SettingsError, match=r"the tool many takes \*args, which no schema can describe"):
        FunctionTool(many)
    with pytest.raises(SettingsError, match="which no schema can describe"):
        FunctionTool(named)
    with pytest.raises(SettingsError, match="the parameters of the tool strange have no JSON Schema"):
        FunctionTool(strange)
    with pytest.raises(SettingsError, match="the parameters of the tool odd have no JSON Schema"):
        FunctionTool(odd)
