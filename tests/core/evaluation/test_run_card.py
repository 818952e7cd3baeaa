"""The card of a run's own evaluation: `oapl evaluate --card` repeats it, and it says what the run's ledger says."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import DataError
from oapl_core.evaluation.cards import agreement, card
from oapl_core.evaluation.evaluate import evaluate
from oapl_core.evaluation.folders.evaluate import evaluate_folder
from oapl_core.evaluation.folders.folder import EvaluationFolder, parse
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.problems.encoding import load_encoder
from oapl_core.problems.prompts import messages
from oapl_core.run_folder.run import Run
from oapl_core.tables import PROBLEMS, PROMPTS, read_table, write_table
from tests.core.evaluation.made_up_verifier import MadeUpVerifier
from tests.installed_package import installed
from tests.sampling_run import MadeUpSampler, made_up_model, make_run
from tests.tiny_model import write_tokenizer

JUDGE = MadeUpVerifier(lambda weights: 0.3 + 0.4 * (int(weights, 16) % 2))


def trained(folder: Path, **changes: Any) -> Run:
    """A run whose prompts are what its model's tokenizer makes of its problems, and whose rounds are trained."""
    model = made_up_model(folder / "model")
    write_tokenizer(model)
    run = make_run(folder, model, problems={"prompt_style": "plain"}, **changes)
    encode = load_encoder(model)
    problems = read_table(run.problems, PROBLEMS).to_pylist()
    for number, problem in enumerate(problems):
        problem |= {"statement": f"What is {number} + 1?", "answer": str(number + 1)}
    with run.writing(run.problems, {}, {}) as draft:
        draft.rows = write_table(draft.path, PROBLEMS, problems)
    with run.writing(run.prompts, run.inputs([run.problems]), {}) as draft:
        rows = []
        for problem in problems:
            text, ids = encode(messages(problem, "plain"))
            name = {"problem_id": problem["problem_id"], "split": problem["split"]}
            rows.append({**name, "prompt": text, "prompt_ids": ids})
        draft.rows = write_table(draft.path, PROMPTS, rows)
        draft.details = {"dropped_by_split": {"train": 4, "heldout": 2}}
    for number, one in enumerate(run.config.rounds):
        for epoch in range(1, one.epochs + 1):
            with run.writing(run.checkpoint(number, epoch), {}, {}) as draft:
                write_tokenizer(made_up_model(draft.path, 10.0 * (number + 1) + epoch))
                draft.details = {"policy_hash": policy_hash(draft.path)}
    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = trained(tmp_path)
    evaluate(made, MadeUpSampler, JUDGE)
    return made


def test_it_says_what_the_ledger_says(run: Run) -> None:
    content = card.read(run.card())
    details = run.ledger.artifacts()[run.name(run.evaluation())].details
    assert list(content["results"]) == list(details["heldout"])
    for label, result in content["results"].items():
        assert result["pass_at_k"] == details["heldout"][label]["pass_at_k"]
    assert content["comparisons"] == details["comparisons"]
    assert content["asked"]["problems"]["count"] == 4
    assert content["origin"]["dropped_prompts"]["base"] == {"prompt too long": 2}
    origins = content["origin"]["models"]
    assert origins["base"] == "base model of the run"
    assert origins[details["chosen"]] == "chosen on validation problems"
    assert details["chosen"] in run.card_text().read_text()


def test_another_environment_is_another_evaluation(run: Run) -> None:
    content = card.read(run.card())
    assert "environment" not in content["asked"], "cards of answers in one turn are as they were"

    def asked(**environment: Any) -> dict[str, Any]:
        settings = parse({**content["settings"], "environment": environment or None}, "test")
        return card.asked(card.Basis(settings, 4, {"content_sha256": ""}, {}, {}), [])

    three, one = asked(function="calculator", max_turns=3), asked(function="calculator", max_turns=1)
    assert asked() != three
    assert three == asked(function="calculator", max_turns=3, workers=2), "what is as fast or slow is the same"
    with pytest.raises(DataError, match=r"environment\.max_turns"):
        agreement.check_asked({"asked": one}, three, run.card())
    before = {key: value for key, value in one.items() if key != "environment"}
    agreement.check_asked({"asked": before}, three, run.card())  # a card of 0.2 does not say it


def test_oapl_evaluate_repeats_it_exactly(run: Run, tmp_path: Path) -> None:
    original = card.read(run.card())
    folder = EvaluationFolder.create(tmp_path / "again", parse({**original["settings"], "repeats": run.card()}, "test"))
    evaluate_folder(folder, MadeUpSampler, JUDGE)
    found = agreement.compare(original, card.read(folder.card))
    assert [one.level for one in found] == ["exactly"] * 3


def test_an_epoch_chosen_on_what_is_reported_is_called_that(tmp_path: Path) -> None:
    made = trained(tmp_path, evaluation={"choose_on": "heldout", "force": True})
    evaluate(made, MadeUpSampler, JUDGE)
    content = card.read(made.card())
    chosen = made.ledger.artifacts()[made.name(made.evaluation())].details["chosen"]
    assert chosen in content["results"] and "chosen on the held-out problems" in content["origin"]["models"][chosen]
    assert len(content["results"]) == 2 + 3


def test_a_lost_card_is_written_again_and_a_whole_one_is_left_alone(run: Run) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("an engine was started although nothing is missing")

    before, text = run.card().stat().st_mtime_ns, card.read(run.card())["results"]
    evaluate(run, never, JUDGE)
    assert run.card().stat().st_mtime_ns == before
    run.card().unlink()
    evaluate(run, never, JUDGE)
    assert card.read(run.card())["results"] == text


def test_a_package_s_card_is_written_beside_ours(tmp_path: Path) -> None:
    made = trained(tmp_path)
    source = """
def write(made, targets, measured, pairs):
    lines = [f"{one.label}: {measured[one.label]['pass_at_k']['1'][0]}" for one in targets]
    made.answers.with_name("shiny.txt").write_text("\\n".join([*lines, str(len(pairs))]))
"""
    with installed(tmp_path, source, "[oapl.card]\nshiny = shiny:write\n"):
        evaluate(made, MadeUpSampler, JUDGE)
    results = card.read(made.card())["results"]
    lines = made.evaluation().with_name("shiny.txt").read_text().splitlines()
    assert lines[:-1] == [f"{label}: {one['pass_at_k']['1'][0]}" for label, one in results.items()]
    assert int(lines[-1]) == len(card.read(made.card())["comparisons"])
