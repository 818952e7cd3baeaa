"""Checkpoints asked at other temperatures beside: what is asked, stored and shown, and that the main numbers stay."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import ConfigError
from oapl_core.evaluation import questions
from oapl_core.evaluation.cards.card import read
from oapl_core.evaluation.cards.card_text import headline, markdown
from oapl_core.evaluation.evaluate import evaluate
from oapl_core.planning.measurements import measurements
from oapl_core.planning.preflight import estimate
from oapl_core.reports.sections.also import section
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord, parts_below
from oapl_core.tables import ROLLOUTS, read_table
from oapl_extras.interim.interim import interim
from oapl_extras.interim.stage import results
from oapl_extras.trackers.figures import rows as tracked
from tests.core.evaluation.made_up_verifier import Starts
from tests.core.evaluation.slow_evaluation import JUDGE
from tests.sampling_run import made_up_model, make_run, train

ALSO = [{"temperature": 1.0, "top_p": 1.0}, {"temperature": 0}]
WAYS = ["T 1, top-p 1", "greedy"]


def made(folder: Path, **evaluation: Any) -> Run:
    run = make_run(folder, made_up_model(folder.parent / "model"), rounds=[{}, {"epochs": 2}], evaluation=evaluation)
    train(run)
    return run


def measured(run: Run, path: Path) -> dict[str, Any]:
    return dict(run.ledger.artifacts()[run.name(path)].details["heldout"])


def main_ones(found: dict[str, Any]) -> dict[str, Any]:
    return {label: {key: value for key, value in one.items() if key != "also"} for label, one in found.items()}


def test_the_main_numbers_and_bytes_are_those_of_a_run_without(tmp_path: Path) -> None:
    plain, both = made(tmp_path / "plain"), made(tmp_path / "both", also=ALSO)
    starts = Starts()
    evaluate(plain, Starts(), JUDGE)
    evaluate(both, starts, JUDGE)
    assert both.evaluation().read_bytes() == plain.evaluation().read_bytes()
    assert main_ones(measured(both, both.evaluation())) == measured(plain, plain.evaluation())
    # 2 epochs x 3 validation problems x 2, and 3 checkpoints x 4 held-out problems x (4 + 4 + 1)
    assert sum(len(one.answered) for one in starts.samplers) == 2 * 6 + 3 * 4 * 9
    assert "also" not in read(plain.card())["settings"] and read(both.card())["settings"]["also"]


def test_answers_and_measures_of_each_way_are_stored_at_its_temperature(tmp_path: Path) -> None:
    run = made(tmp_path / "runs", also=ALSO)
    evaluate(run, Starts(), JUDGE)
    for label, one in measured(run, run.evaluation()).items():
        assert list(one["also"]) == WAYS, label
        assert [each["answers"] for each in one["also"].values()] == [16, 4]
        assert list(one["also"]["greedy"]["pass_at_k"]) == ["1"] and "4" in one["also"][WAYS[0]]["pass_at_k"]
    by_folder = {part.parents[1].name: read_table(part, ROLLOUTS) for part in parts_below(run.evaluations())}
    for name, temperature, top_p, answers in (
        ("base_heldout", 0.6, 0.95, 16),
        ("base_heldout.T-1-top-p-1", 1.0, 1.0, 16),
        ("round_0_heldout.greedy", 0.0, 0.95, 4),
    ):
        rows = by_folder[name].to_pylist()
        assert len(rows) == answers
        assert {(round(r["temperature"], 3), round(r["top_p"], 3)) for r in rows} == {(temperature, top_p)}
    again = Starts()
    evaluate(run, again, JUDGE)
    assert not again.samplers, "nothing is asked twice"


def test_what_is_measured_during_the_run_is_asked_in_each_way_and_used_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_PART_ANSWERS", 4)  # one problem a part, four greedy ones
    run = made(tmp_path / "runs", also=ALSO, every_rounds=1, heldout_problems=2)
    during, end = Starts(), Starts()
    interim(run, 0, during, JUDGE)
    found = measured(run, results(run, 0))
    assert list(found) == ["base", "round 0"] and all(list(one["also"]) == WAYS for one in found.values())
    assert [one["problems"] for one in (found["base"], *found["base"]["also"].values())] == [2, 2, 4]
    # validation 6; base and round 0: two problems in two ways, all four greedy
    assert sum(len(one.answered) for one in during.samplers) == 6 + 2 * (8 + 8 + 4)
    evaluate(run, end, JUDGE)
    assert sum(len(one.answered) for one in end.samplers) == 2 * 6 + 2 * (8 + 8) + 4 * 9
    need = estimate(run, "evaluation.evaluate", None)
    assert need and f"{2 * 6 + 3 * 4 * 9} answers" in need.what


def test_report_trackers_and_card_show_each_way_beside_the_main_numbers(tmp_path: Path) -> None:
    run = made(tmp_path / "runs", also=ALSO)
    assert section(RunRecord(run), tmp_path) is None
    evaluate(run, Starts(), JUDGE)
    shown = section(RunRecord(run), tmp_path)
    assert shown
    lines = [[cell.strip() for cell in line.split("|")] for line in shown.text.splitlines()]
    ways = [line[2] for line in lines if len(line) > 2 and line[1] == "base"]
    assert ways == ["T 0.6, top-p 0.95", *WAYS]
    axes = {row.axis for row in tracked(run)}
    assert {"heldout", "heldout_T_1_top-p_1", "heldout_greedy"} <= axes and "validation_greedy" not in axes
    assert not any(one.decides for one in measurements(run) if one.decoding)
    content = read(run.card())
    greedy = content["results"]["base"]["also"]["greedy"]["pass_at_k"]["1"][0]
    assert any(line.startswith(f"base, greedy: pass@1 {greedy:.1%}") for line in headline(content))
    assert "base, T 1, top-p 1" in markdown(content)


def test_the_example_of_the_page_asks_in_two_ways_more(root: Path, tmp_path: Path) -> None:
    example = (root / "docs/extras/interim.md").read_text().split("## At other temperatures")[1]
    settings = tomllib.loads(example.split("```toml\n", 1)[1].split("```", 1)[0])
    run = made(tmp_path / "runs", **settings["evaluation"])
    evaluate(run, Starts(), JUDGE)
    assert list(measured(run, run.evaluation())["base"]["also"]) == WAYS
    for way in ("T-1-top-p-1", "greedy"):
        assert f"heldout.{way}" in example and (run.evaluations() / f"base_heldout.{way}").is_dir()


@pytest.mark.parametrize(
    ("also", "what"),
    [
        ([{"temperature": 0}, {"temperature": 0.0, "top_p": 1.0}], "greedy is given twice"),
        ([{"temperature": 0.6}], "T 0.6, top-p 0.95 is given twice, or is what everything is asked with anyway"),
        ([{"temperature": -1}], "greater than or equal to 0"),
        ([{"top_k": 5}], "top_k"),
    ],
)
def test_a_way_that_says_nothing_is_refused_in_one_line(tmp_path: Path, also: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as error:
        make_run(tmp_path, made_up_model(tmp_path / "model"), evaluation={"also": also})
    assert "\n" not in str(error.value)
