"""What an environment that judges gave is what a trajectory earns, until a part of ``[reward]`` says otherwise."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.rollouts.generate import generate
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.reward import RewardConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.verdicts.environment_rewards import Played
from oapl_core.verdicts.judges import Judges
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verify import verify
from tests.core.verdicts.test_rewards import EXPERIMENT
from tests.lasting_maths import lasting_maths as lasting_maths
from tests.speaking_sampler import SpeakingSampler, speaking_run

pytestmark = pytest.mark.usefixtures("lasting_maths")

GUESS = {"function": "tests.played_environments:Guess"}
PARTS = {"environment": 1.0, "function": 0.5}
OWN = """
def score(problem, response, verdict):
    return verdict["environment"] - 1, {"turns": round(9 - 8 * verdict["environment"])}
"""


def judged(
    folder: Path, environment: dict[str, str] = GUESS, word: str | None = None, **settings: Any
) -> tuple[pl.DataFrame, dict[str, float]]:
    """The verdicts on a round of guesses, and what the turns of each rollout earned together."""
    (folder / "rewards.py").write_text(OWN)
    verifier = {"workers": 1, "max_error_share": settings.pop("errors", 0.0)}
    run = speaking_run(folder, ["Which?"] * 8, environment=environment, verifier=verifier, **settings)

    def counts_up(conversation: str, _: object) -> str:
        return word or str(conversation.count("higher"))

    generate(run, 0, lambda model, config: SpeakingSampler(counts_up, model, config))
    verify(run, 0)
    parts = sorted(run.rollouts(0).glob("*.parquet"))
    rows = [row for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]
    found = pl.concat(pl.read_parquet(part) for part in sorted(run.verdicts(0).glob("*.parquet")))
    return found, {row["rollout_id"]: sum(row["turn_rewards"] or []) for row in rows}


@pytest.mark.slow_if(case=lambda given: given["right_from"] != 0.875)
@pytest.mark.parametrize("right_from", [0.5, 0.875, -3.0])
def test_a_threshold_alone_changes_no_reward(tmp_path: Path, right_from: float) -> None:
    found, earned = judged(tmp_path, reward={"right_from": right_from})
    assert dict(found.select("rollout_id", "reward").iter_rows()) == earned
    assert len({*earned.values()}) > 3, "the guesses are worth different rewards"
    assert {*found.filter(pl.col("reward") >= right_from)["outcome"]} == {"passed"}
    assert {*found.filter(pl.col("reward") < right_from)["outcome"]} <= {"wrong_answer"}
    assert not [name for name in found.columns if name.startswith("reward_")]


def test_the_same_rewards_as_without_settings(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    without, _ = judged(tmp_path / "without")
    found, _ = judged(tmp_path / "with", reward={"right_from": 0.5})
    assert found["reward"].to_list() == without["reward"].to_list() and found.columns == without.columns


def test_what_the_environment_gave_is_a_part_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = {"function": "rewards:score", "columns": ["turns"], "right_from": 0.5}
    found, earned = judged(tmp_path, reward={**function, "parts": PARTS | {"verdict": 2.0}})
    for row in found.iter_rows(named=True):
        given = earned[row["rollout_id"]]
        assert (row["reward_environment"], row["reward_function"]) == (given, 0.5 * (given - 1)), row
        assert row["reward_verdict"] == 2.0 * (given >= 0.5) and row["reward_turns"] == 9 - 8 * given
        assert row["reward"] == row["reward_environment"] + row["reward_function"] + row["reward_verdict"]


def test_a_function_alone_is_told_what_the_environment_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, earned = judged(tmp_path, reward={"function": "rewards:score", "columns": ["turns"]})
    assert {row["rollout_id"]: row["reward"] + 1 for row in found.iter_rows(named=True)} == earned


def test_a_penalty_lies_on_top_of_what_the_environment_gave(tmp_path: Path) -> None:
    parts = {"environment": 2.0, "length": 0.25}
    found, earned = judged(tmp_path, reward={"parts": parts})
    assert (found["reward_length"] < 0).all()
    for row in found.iter_rows(named=True):
        assert row["reward_environment"] == 2 * earned[row["rollout_id"]]
        assert row["reward"] == row["reward_environment"] + row["reward_length"]


def test_parts_and_functions_know_the_answer_where_the_environment_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.py").write_text(
        "def score(problem, response, verdict):\n    return verdict['answer'] == '4'\n"
    )
    maths: dict[str, Any] = {"problem_id": "m", "kind": "math", "answer": "5", "tests": [], "statement": "2 + 2?"}
    text = maths | {"problem_id": "t", "kind": "text", "answer": "green apple"}
    program = maths | {"problem_id": "p", "kind": "stdin", "answer": None}
    asked = [maths, maths, text, program, maths]
    texts = ["so \\boxed{4}", "so it is 4", "\\boxed{green pear}", "```python\n1 / 0\n```", "\\boxed{4}"]
    played = [Played(1.0), Played(0.25), Played(0.25), Played(1.0), Played(failure="gone")]
    parts = {"environment": 1.0, "format": 10.0, "f1": 100.0, "function": 1000.0}
    reward = RewardConfig.model_validate({"function": "answers:score", "parts": parts})
    with Judges(VerifierConfig(workers=1), reward, 100) as judges:
        found = list(judges.stream(asked, texts, ["stop"] * 5, [5] * 5, played))
    # the environment alone says what is right: the gold is 5, and the program fails
    assert [str(one.outcome) for one in found] == ["passed", *["wrong_answer"] * 2, "passed", "verifier_error"]
    assert [one.answer for one in found] == ["4", None, "green pear", "1 / 0\n", None]
    assert [one.reward for one in found] == [1111.0, 0.25, 60.25, 111.0, None]


def test_an_environment_that_is_no_judge_has_no_such_part(tmp_path: Path) -> None:
    again = {"function": "tests.played_environments:Again"}
    with pytest.raises((ConfigError, StageFailed), match=r"parts.environment: .*is_judge = True"):
        judged(tmp_path, environment=again, reward={"parts": {"environment": 1.0}})


def test_without_an_environment_the_part_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no \[environment\]"):
        parse_experiment({**EXPERIMENT, "reward": {"parts": {"environment": 1.0}}}, "test")


def test_a_failed_environment_is_no_reward_with_parts_either(tmp_path: Path) -> None:
    # a guess that is no number makes this environment raise
    found, _ = judged(tmp_path, word="none", reward={"parts": {"environment": 1.0}}, errors=1.0)
    assert {*found["outcome"]} == {str(Outcome.VERIFIER_ERROR)} and found["reward"].null_count() == len(found)
    assert found["reward_environment"].null_count() == len(found)
