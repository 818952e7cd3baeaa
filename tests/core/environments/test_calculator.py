"""The calculator computes what arithmetic says, and nothing else."""

import pickle

import pytest

from oapl_core.environments.calculator import Calculator, calc
from oapl_core.environments.protocol import Action, Environment, ToolError
from oapl_core.environments.syntax import calls


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("417 + 892 + 356", "1665"),
        (" (17 + 25) * -3", "-126"),
        ("0.1 + 0.2", "0.3"),
        ("2 ** 100", str(2**100)),
        ("10 / 4", "2.5"),
        ("1 / 3", "0.333333333333"),
        ("7 // 2 + 7 % 4", "6"),
        # beyond what a binary number holds
        ("2**2000/3", "3.82710231758e+601"),
        ("-1/10**400", "-1e-400"),
        ("0/7", "0"),
    ],
)
def test_value(expression: str, value: str) -> None:
    assert calc(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "x",
        "__import__('os')",
        "9 ** 9 ** 9",
        "10 ** 5000",
        "1 / 0",
        "True",
        "[1]",
        "1 " + "+ 1" * 500,
        "(" * 900,
    ],
)
def test_what_is_no_sum_is_an_error_of_the_model(expression: str) -> None:
    with pytest.raises(ToolError):
        calc(expression)


def test_steps_give_results_and_a_turn_without_a_call_is_the_end() -> None:
    environment = pickle.loads(pickle.dumps(Calculator()))
    assert isinstance(environment, Environment)
    text = "Let me see: <calc>1 + 1</calc> and <calc>1 +</calc>"
    seen = environment.step(Action(text, calls(text, "tags", environment.tools())))
    assert (seen.results[0].text, seen.results[0].is_error) == ("2", False)
    assert seen.results[1].is_error
    assert not seen.is_done
    assert environment.step(Action("2")).is_done


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('{"name": "sum"}', "no tool 'sum'; the tools are calc"),
        ('{"name": "calc", "arguments": {"x": "1"}}', "missing a required argument: 'expression'"),
        ('{"name": "calc"', "the call is not JSON"),
    ],
)
def test_a_wrong_call_is_told_to_the_model(said: str, told: str) -> None:
    (call,) = calls(f"<tool_call>{said}</tool_call>", "json", Calculator().tools())
    (result,) = Calculator().step(Action("", (call,))).results
    assert result.is_error
    assert told in result.text
