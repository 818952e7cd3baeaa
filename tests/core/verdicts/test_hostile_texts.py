"""Thousands of texts that nobody meant, each: no answer, tool call or reply of a judge makes a verifier error."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oapl_core.environments.calculator import Calculator
from oapl_core.environments.protocol import Action
from oapl_core.environments.python_session import PythonSession
from oapl_core.environments.search import Search, index
from oapl_core.environments.stepping import observed
from oapl_core.environments.syntax import calls
from oapl_core.environments.tools import ToolEnvironment
from oapl_core.settings.experiment_file import parse_as
from oapl_core.settings.reward import RewardConfig
from oapl_core.settings.verifier import ANSWER_RULES, VerifierConfig
from oapl_core.tables import TURNS, read_table, write_table
from oapl_core.verdicts import extraction
from oapl_core.verdicts.answers import answer_rules
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier
from oapl_core.verdicts.workers.function_pool import FunctionCall
from oapl_extras.judge.language_judge import LanguageJudge, _NoVote
from tests import sandboxes
from tests.core.verdicts import hostile_texts

COUNTS = pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
SLOW_ANSWERS = 2000
SYNTAXES = ("json", "llama", "fence", "tags")


def texts(count: int, seed: int = 0) -> Iterator[str]:
    rng = random.Random(seed)
    return (hostile_texts.text(rng) for _ in range(count))


@COUNTS
def test_thousands_of_answers_are_read(count: int) -> None:
    kinds = Counter[tuple[str, type]]()
    for text in texts(count):
        for is_thinking in (False, True):
            kinds["program", type(extraction.program(text, is_thinking))] += 1
        for rule in ANSWER_RULES:
            kinds[rule, type(answer_rules.maths_by(rule, text))] += 1
    readers = ("program", *ANSWER_RULES)
    assert kinds.keys() == {(reader, kind) for reader in readers for kind in (str, type(None))}, "each finds some"
    assert kinds.total() == count * (2 + len(ANSWER_RULES))


PROBLEMS: list[dict[str, Any]] = [
    {"problem_id": "m", "kind": "math", "statement": "1 + 1?", "answer": "\\frac{3}{4}"},
    {
        "problem_id": "s",
        "kind": "stdin",
        "entry_point": None,
        "statement": "?",
        "tests": [{"input": "1\n", "output": "2\n"}],
    },
    {
        "problem_id": "f",
        "kind": "function",
        "entry_point": "f",
        "statement": "?",
        "tests": [{"input": "[1]", "output": "2"}],
    },
    {
        "problem_id": "a",
        "kind": "assert",
        "entry_point": "f",
        "statement": "?",
        "tests": [{"input": "assert f(1) == 2", "output": ""}],
    },
]


def answers(count: int, seed: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Texts put where each kind of problem looks for its answer."""
    for number, text in enumerate(texts(count, seed)):
        problem = PROBLEMS[number % len(PROBLEMS)]
        yield problem, f"\\boxed{{{text}}}" if problem["kind"] == "math" else f"~~~~~python\n{text}\n~~~~~"


def judged(count: int, seed: int) -> Counter[Outcome]:
    config = VerifierConfig(workers=2, cpu_s=2.0, wall_s=20.0)
    problems, said = zip(*answers(count, seed), strict=True)
    with Verifier(config, level=sandboxes.LEVEL) as verifier:
        verdicts = verifier.verify(problems, said, ["stop"] * count)
    failed = [(v.problem_id, v.excerpt, said[i][:200]) for i, v in enumerate(verdicts) if v.reward is None]
    assert not failed, failed[:3]
    return Counter(verdict.outcome for verdict in verdicts)


def test_some_answers_are_judged() -> None:
    assert judged(120, 1).total() == 120


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_answers_are_judged() -> None:
    assert judged(SLOW_ANSWERS, 2).total() == SLOW_ANSWERS


def answered(environment: ToolEnvironment, tools: dict[str, str], count: int, seed: int) -> list[dict[str, Any]]:
    """The calls' rows of ``count`` turns; whatever is raised ends the test."""
    rng, rows = random.Random(seed), list[dict[str, Any]]()
    for turn in range(count):
        text = hostile_texts.call(rng, tools)
        for syntax in SYNTAXES:
            made = calls(text, syntax, environment.tools(), 8)
            seen = observed(environment.step(Action(text, made, turn, 20.0)))
            assert seen.is_done == (not made) and len(seen.results) == len(made) <= 9
            for result in seen.results:
                about = {"turn": turn, "name": result.call.name, "arguments": result.call.written}
                rows.append({**about, "result": result.text, "is_error": result.is_error, "seconds": result.seconds})
    return rows


def stored(rows: list[dict[str, Any]], folder: Path) -> int:
    """Writes the calls as rollouts have them; how many came back."""
    empty: dict[str, Any] = dict.fromkeys(name for name, _ in TURNS)
    chunks = [rows[i : i + 512] for i in range(0, len(rows), 512)]
    write_table(folder / "turns.parquet", TURNS, [empty | {"tool_calls": chunk} for chunk in chunks])
    return sum(map(len, read_table(folder / "turns.parquet", TURNS)["tool_calls"].to_pylist()))


@COUNTS
def test_thousands_of_tool_calls_are_answered(tmp_path: Path, count: int) -> None:
    index([{"title": "a", "text": "b " * 99}], tmp_path / "pages.sqlite")
    rows = answered(Calculator(), {"calc": "expression"}, count // 2, 3)
    rows += answered(Search(str(tmp_path / "pages.sqlite")), {"search": "query", "read": "page"}, count // 2, 4)
    assert len(rows) > count
    assert {row["is_error"] for row in rows} == {True, False}
    assert stored(rows, tmp_path) == len(rows)


def runs_of_python(count: int, seed: int) -> list[dict[str, Any]]:
    """The calls' rows of ``count`` turns."""
    level = sandboxes.LEVEL or "fallback"
    environment = PythonSession(cpu_s=1.0, wall_s=10.0, memory_mb=256, servers=1, minimum_level=level)
    try:
        return answered(environment, {"python": "code"}, count, seed)
    finally:
        environment.close()


def test_some_calls_of_python_are_run(tmp_path: Path) -> None:
    rows = runs_of_python(40, 5)
    assert len({row["turn"] for row in rows}) > 10
    assert {row["is_error"] for row in rows} == {True, False}
    assert any("SyntaxError" in row["result"] for row in rows), "Python has read them"
    assert stored(rows, tmp_path) == len(rows)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_calls_of_python_are_run(tmp_path: Path) -> None:
    rows = runs_of_python(1000, 6)
    assert len({row["turn"] for row in rows}) > 250
    assert {row["is_error"] for row in rows} == {True, False}
    assert any("SyntaxError" in row["result"] for row in rows), "Python has read them"
    assert stored(rows, tmp_path) == len(rows)


def replies(rng: random.Random) -> bytes:
    """What a server may send: the protocol's form with any text, or another form, or no JSON."""
    kind = rng.randrange(6)
    if kind == 0:
        return hostile_texts.text(rng).encode("utf-8", "surrogatepass")
    if kind == 1:
        return json.dumps(hostile_texts.value(rng)).encode()
    content = hostile_texts.value(rng) if kind == 2 else f"{hostile_texts.text(rng)}\nScore: {rng.randrange(11)}"
    message = {"choices": [{"message": {"content": content}}], "usage": hostile_texts.value(rng) if kind == 3 else {}}
    return json.dumps(message).encode()


def opinions(folder: Path, reply: Callable[[], bytes], count: int) -> list[float | _NoVote]:
    (folder / "judge.jinja").write_text("{{ response }}")
    (folder / "canaries.jsonl").write_text("{}")
    values = {"url": "http://judge", "model": "m", "scale": 10, "retries": 0, "backoff_s": 0.001}
    files = {"prompt": folder / "judge.jinja", "canaries": folder / "canaries.jsonl", "cache": folder / "r.sqlite"}
    config = parse_as(RewardConfig, {"judge": {**values, **{k: str(v) for k, v in files.items()}}}, "test").judge
    assert config
    judge = LanguageJudge(config)
    judge._client.close()
    judge._client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=reply())))
    try:
        return [judge._vote(FunctionCall({}, str(number), {}), number, fresh=True) for number in range(count)]
    finally:
        judge.close()


@COUNTS
def test_thousands_of_replies_of_a_judge_are_numbers_or_errors_of_their_row(tmp_path: Path, count: int) -> None:
    rng = random.Random(7)
    begun = time.monotonic()
    found = opinions(tmp_path, lambda: replies(rng), count)
    kinds = Counter(type(one) for one in found)
    assert kinds[float] > count / 4 and kinds[_NoVote] > count / 4, kinds
    assert all(one == one and abs(one) < float("inf") for one in found if isinstance(one, float))
    assert time.monotonic() - begun < 300
