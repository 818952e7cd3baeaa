"""What a model writes into a call is the model's: whatever it is, the tool sees its own types or is not run."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from oapl_core.environments import tools
from oapl_core.environments.arguments import fitted
from oapl_core.environments.calculator import Calculator
from oapl_core.environments.protocol import Action, Observation, ToolCall, ToolError, ToolResult
from oapl_core.environments.python_session import PythonSession
from oapl_core.environments.search import Search, index
from oapl_core.environments.stepping import observed
from oapl_core.environments.syntax import calls
from oapl_core.environments.tools import ToolEnvironment

OTHERS: list[Any] = [5, None, ["a"], {"a": 1}, True, 0.5, [[]] * 3]


def asked(environment: ToolEnvironment, text: str, syntax: str = "json") -> list[ToolResult]:
    return list(environment.step(Action(text, calls(text, syntax, environment.tools()), 0, 60.0)).results)


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_an_argument_of_another_type_is_told_to_the_model(value: Any, tmp_path: Path) -> None:
    index([{"title": "a", "text": "b"}], tmp_path / "pages.sqlite")
    shipped = [
        (Calculator(), "calc", "expression"),
        (PythonSession(), "python", "code"),
        (Search(str(tmp_path / "pages.sqlite")), "search", "query"),
    ]
    for environment, tool, parameter in shipped:
        said = json.dumps({"name": tool, "arguments": {parameter: value}})
        (result,) = asked(environment, f"<tool_call>{said}</tool_call>")
        assert result.is_error
        assert f"argument `{parameter}`: Input should be a valid string" in result.text


def several(items: list[str], kind: Literal["a", "b"] = "a", price: float = 0.0, page: int | None = None) -> str:
    """Has types of every sort."""
    return f"{items} {kind} {price} {page}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "missing a required argument: 'items'"),
        ({"items": [], "more": 1}, "got an unexpected keyword argument 'more'"),
        ({"items": [1]}, "argument `items`: Input should be a valid string"),
        ({"items": "a"}, "argument `items`: Input should be a valid list"),
        ({"items": [], "kind": "c"}, "argument `kind`: Input should be 'a' or 'b'"),
        ({"items": [], "price": "dear"}, "argument `price`: Input should be a valid number"),
        ({"items": [], "page": 0.5}, "argument `page`: Input should be a valid integer"),
        ({"items": [], "\N{BLACK STAR}" * 10**5: 1}, "got an unexpected keyword argument"),
    ],
)
def test_types_are_those_of_the_tool(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolError) as error:
        fitted(several, arguments)
    assert told in str(error.value)
    assert len(str(error.value)) <= 200


@pytest.mark.parametrize("price", ["nan", "inf", "-Infinity", "1e999", math.inf])
def test_a_number_that_is_none_is_told_to_the_model(price: Any) -> None:
    with pytest.raises(ToolError, match="argument `price`: Input should be a finite number"):
        fitted(several, {"items": [], "price": price})


class Basket(BaseModel):
    """A type that has settings of its own."""

    price: float


def test_a_type_with_settings_of_its_own_keeps_them() -> None:
    def weigh(basket: Basket) -> str:
        return str(basket.price)

    assert fitted(weigh, {"basket": {"price": "2"}}) == {"basket": Basket(price=2.0)}


@pytest.mark.parametrize("written", ["NaN", "Infinity", "[-Infinity]"])
def test_constants_that_json_lacks_are_no_json(written: str) -> None:
    said = f'<tool_call>{{"name": "several", "arguments": {{"items": {written}}}}}</tool_call>'
    (call,) = calls(said, "json", [several])
    assert "the call is not JSON" in call.error and "is no number" in call.error


def test_numbers_that_are_written_as_texts_are_numbers() -> None:
    assert fitted(several, {"items": ["a"], "price": 3, "page": "7"}) == {"items": ["a"], "price": 3.0, "page": 7}


def test_tags_give_a_number_to_a_tool_that_takes_one(tmp_path: Path) -> None:
    index([{"title": "Rivers", "text": "The Spree."}], tmp_path / "pages.sqlite")
    search = Search(str(tmp_path / "pages.sqlite"))
    one, other = asked(search, "<read>1</read><read>the first</read>", "tags")
    assert one.text == "Rivers\nThe Spree."
    assert other.is_error and "Input should be a valid integer" in other.text


class Waits(ToolEnvironment):
    """Its tool takes so many seconds, as many as it is told, of a clock that stands still otherwise."""

    ran, now = 0, 0.0

    @classmethod
    def monotonic(cls) -> float:
        return cls.now

    def tools(self) -> list[Any]:
        return [self.wait, self.nothing]

    def wait(self, seconds: float) -> str:
        """Waits."""
        Waits.ran += 1
        Waits.now += seconds
        return "done"

    def nothing(self) -> str:
        """Has no parameter."""
        return "nothing"


def test_calls_of_a_turn_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "time", Waits)
    Waits.ran, text = 0, "<wait>0.2</wait>" * 20
    environment = Waits()
    results = environment.step(Action(text, calls(text, "tags", environment.tools()), 0, 0.5)).results
    assert Waits.ran == 3 and [result.is_error for result in results] == [False] * 3 + [True] * 17
    assert "the calls before it took the turn's time" in results[-1].text


def test_a_turn_makes_a_bounded_number_of_calls() -> None:
    text = "<wait>0</wait>" * 1000
    found = calls(text, "tags", Waits().tools(), 4)
    assert [bool(call.error) for call in found] == [False] * 4 + [True]
    assert found[-1].error == "a turn may make 4 calls; 996 were not run"
    assert len(calls(text, "tags", Waits().tools(), 1000)) == 1000


def test_a_tool_without_parameters_needs_none_in_tags() -> None:
    (result,) = asked(Waits(), "<nothing>please</nothing>", "tags")
    assert result.text == "nothing"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "`step` returned NoneType, not an Observation"),
        ("text", "`step` returned str"),
        (Observation(text=5), "has int for its `text`"),  # type: ignore[arg-type]
        (Observation(reward=float("nan")), "the reward nan"),
        (Observation(reward="much"), "could not convert"),  # type: ignore[arg-type]
        (Observation((ToolResult(ToolCall("a", {}, "{}"), 7),)), "has a part that is no text"),  # type: ignore[arg-type]
        (Observation((ToolResult(ToolCall(None, {}, "{}"), "7"),)), "has a part"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_of_another_form_is_the_environment_s_failure(given: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match="^.*" + told.replace("`", "`")):
        observed(given)


def test_an_answer_has_no_half_of_an_emoji() -> None:
    call = ToolCall("\ud83d", {}, "\ud83d")
    seen = observed(Observation((ToolResult(call, "a\ud83d"),), text="\ud83d", reward=True))
    assert (seen.text, seen.results[0].text, seen.results[0].call.name) == ("\ufffd", "a\ufffd", "\ufffd")
    assert seen.results[0].call.written == "\ufffd" and seen.reward == 1.0
