"""A whole run whose first round trains on demonstrations, killed in it: the same bits; round 1 samples with its end."""

import json
from pathlib import Path

import pytest

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.whole_run import content, kill_when, made_more_than_once, oapl, small_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def arguments(folder: Path) -> list[str]:
    """Rationales joined by id: one of the demo's solutions to each of its problems."""
    folder.mkdir()
    made = small_demo(folder, train=48)
    solved = [json.loads(line) for line in (folder / "solutions.jsonl").read_text().splitlines()]
    rows = [{"problem_id": row["problem_id"], "solution": row["solutions"][-1]} for row in solved]
    (folder / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, training = f'{{demonstrations = "{folder / "shown.jsonl"}"}}', "{batch_size = 4, learning_rate = 1e-3}"
    made = [word for word in made if not word.startswith("rounds.")]
    rounds = f'rounds=[{{rows = {source}, epochs = 2, training = {training}}}, {{keep = "all"}}]'
    return ["run", *made, rounds, "training.save_steps=1"]


def opened(folder: Path) -> Run:
    return Run.open(folder / "runs" / "demo-seed0")


def test_killed_in_a_round_of_demonstrations_the_run_ends_with_the_same_artifacts(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    oapl(arguments(undisturbed))
    expected = opened(undisturbed)
    words = arguments(disturbed)
    state = disturbed / "runs" / "demo-seed0" / "round_00" / "4_checkpoint" / "sft" / "state"
    kill_when(words, tmp_path / "killed.log", (state / "epoch_02_step_000005" / "belongs_to.json").exists)
    found = opened(disturbed)
    assert [step.word for step in finished(found)] == ["base-model", "problems-and-prompts", "groups"]
    assert found.checkpoint(0, 1).is_dir()
    said = oapl(words)
    assert "epochs done: 1 of 2, and" in said
    assert [step.word for step in finished(found)] == [step.word for step in steps(found.config)]
    assert made_more_than_once(found) == []
    ours, theirs = found.ledger.artifacts(), expected.ledger.artifacts()
    assert sorted(ours) == sorted(theirs)
    apart = ("report", "base_model.json", found.name(found.card()), found.name(found.card_text()))
    names = [name for name in ours if name not in apart]
    assert {"round_00/4_checkpoint/sft/epoch_02", "round_01/1_rollouts/part-00000.parquet"} <= set(names)
    shown = {"round_00/3_groups.parquet"}  # its rows name the file, which lies elsewhere
    assert [n for n in names if n not in shown and content(found, ours[n]) != content(expected, theirs[n])] == []

    trained, sampled = policy_hash(found.policy(1)), ours["round_01/1_rollouts/part-00000.parquet"]
    assert sampled.details["policy_hash"] == trained != policy_hash(found.base_model())
    measured = json.loads(found.card().read_text())["results"]
    assert list(measured)[:2] == ["base", "round 0"]
    report = (found.report / "report.md").read_text()
    assert "SFT then OAPL, 2 rounds" in report
    assert trained in report
