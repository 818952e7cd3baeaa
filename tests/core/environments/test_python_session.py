"""The Python tool: state from call to call, what a limit costs, and how it continues from its pickle."""

import pickle
from collections.abc import Iterator

import pytest

from oapl_core.environments.protocol import Action, Environment, ToolResult
from oapl_core.environments.python_session import PythonSession
from oapl_core.environments.syntax import calls
from tests import sandboxes


@pytest.fixture
def environment() -> Iterator[PythonSession]:
    made = PythonSession(cpu_s=0.5, wall_s=20.0, memory_mb=256, servers=1, minimum_level=sandboxes.LEVEL or "fallback")
    yield made
    made.close()


def asked(environment: Environment, code: str) -> ToolResult:
    text = f"I compute.\n```python\n{code}\n```"
    (result,) = environment.step(Action(text, calls(text, "fence", environment.tools()))).results
    return result


def test_variables_stay(environment: PythonSession) -> None:
    assert asked(environment, "x = 6 * 7").text == "(no output)"
    assert asked(environment, "print(x)\nx + 1").text == "42\n43"
    assert "ZeroDivisionError" in asked(environment, "1 / 0").text
    assert not asked(environment, "1 / 0").is_error  # a traceback is what the code says


def test_at_a_limit_the_session_begins_anew_and_the_model_is_told(environment: PythonSession) -> None:
    asked(environment, "x = 1")
    result = asked(environment, "while 1: pass")
    assert result.is_error
    assert "more than 0.5 s of CPU time; the session was restarted" in result.text
    assert "NameError" in asked(environment, "x").text
    assert "the code ended the interpreter" in asked(environment, "import os; os._exit(0)").text


def test_a_restored_environment_has_the_state_of_its_last_call(environment: PythonSession) -> None:
    asked(environment, "import random\nx = [random.random()]\nopen('kept', 'w').write('file')")
    kept = pickle.dumps(environment)
    shown = asked(environment, "x").text
    environment.close()
    restored = pickle.loads(kept)
    assert asked(restored, "x").text == shown
    assert asked(restored, "open('kept').read()").text == "'file'"
    restored.close()


def test_a_lost_session_is_made_again_from_its_calls(environment: PythonSession) -> None:
    asked(environment, "x = 41")
    assert environment._session
    environment._session._control.close()  # as if its keeper had died
    assert asked(environment, "x + 1").text == "42"
