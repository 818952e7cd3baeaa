"""Drawing by pass rates: proportions, temperature, retirement, shares, seeds; resumed rounds; what is recorded."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.rollouts import difficulty
from oapl_core.rollouts.difficulty import Draw, Known, draw, known_so_far
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.draws import draw_file, told
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from tests.sampling_run import MadeUpSampler, made_up_model, make_run

NAMES = [f"p{number:02d}" for number in range(40)]


def run_of(folder: Path, problems: int, seed: int = 0, rounds: int = 3, **difficulty: Any) -> Run:
    sets = dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl")
    one = {"problems": problems, "draw": "difficulty", "difficulty": difficulty}
    values = {"name": "d", "seed": seed, "runs_dir": folder, "model": folder, "problems": sets}
    return Run(folder, parse_experiment({**values, "rounds": [one] * rounds}, "test"))


def drawn(run: Run, known: dict[str, Known], number: int = 2, sources: dict[str, str] | None = None) -> Draw:
    return draw(NAMES, sources or dict.fromkeys(NAMES, "a"), known, run, number)


@given(st.integers(0, 12), st.integers(0, 12))
def test_the_weight_is_the_mean_variance_under_what_was_seen(correct: int, wrong: int) -> None:
    """Against the integral of p(1-p) over the posterior of p, by sums of 2,000 slices."""
    slices = [(k + 0.5) / 2_000 for k in range(2_000)]
    density = [p**correct * (1 - p) ** wrong for p in slices]
    mean = sum(p * (1 - p) * d for p, d in zip(slices, density, strict=True)) / sum(density)
    assert Known(correct + wrong, correct).weight == pytest.approx(mean, rel=1e-3)


def test_problems_come_in_proportion_to_their_weights_and_a_temperature_sharpens(tmp_path: Path) -> None:
    known = dict.fromkeys(NAMES, Known(8, 8)) | {"p00": Known(8, 4), "p01": Known(8, 1)}
    for temperature in (1.0, 0.5, 4.0):
        run, counts = run_of(tmp_path, 1, rounds=1500, temperature=temperature), Counter[str]()
        for number in range(1500):
            counts.update(drawn(run, known, number).chosen)
        weights = {name: one.weight ** (1 / temperature) for name, one in known.items()}
        for name in ("p00", "p01"):
            expected = weights[name] / sum(weights.values())
            assert counts[name] / 1500 == pytest.approx(expected, abs=4 * math.sqrt(expected / 1500))


def test_the_same_again_another_with_another_seed_or_round_and_the_order_of_names_is_nothing(tmp_path: Path) -> None:
    run, other = run_of(tmp_path, 12), run_of(tmp_path, 12, seed=1)
    first = drawn(run, {})
    assert len(first.chosen) == 12
    assert drawn(run, {}).digest == first.digest
    assert draw(NAMES[::-1], dict.fromkeys(NAMES, "a"), {}, run, 2).chosen == first.chosen
    assert drawn(other, {}).digest != first.digest != drawn(run, {}, 1).digest


def test_the_settled_are_left_out_until_they_are_looked_at_again(tmp_path: Path) -> None:
    run = run_of(tmp_path, 10, rounds=12, look_again=3)
    known = {name: Known(8, 8, 2, "right") for name in NAMES[:25]} | {"p30": Known(8, 0, 2, "wrong")}
    for number in (3, 4, 5):
        assert drawn(run, known, number).retired == {*NAMES[:25], "p30"}
        assert not drawn(run, known, number).chosen & {*NAMES[:25], "p30"}
    assert not drawn(run, known, 6).retired


def test_where_too_few_are_left_those_looked_at_longest_ago_come_first(tmp_path: Path) -> None:
    run = run_of(tmp_path, 10, rounds=12)
    known = {name: Known(8, 8, 1 + i % 2, "right") for i, name in enumerate(NAMES[:36])}
    found = drawn(run, known, 3).chosen
    assert set(NAMES[36:]) < found
    assert {known[name].last_round for name in found - set(NAMES[36:])} == {1}
    assert len(found) == 10


def test_shares_are_kept_and_what_a_source_cannot_give_comes_from_the_others(tmp_path: Path) -> None:
    sources = {name: "abc"[min(2, i // 10)] for i, name in enumerate(NAMES)}  # 10, 10 and 20
    counts = Counter(
        sources[n] for n in drawn(run_of(tmp_path, 20, shares={"a": 0.4, "b": 0.1}), {}, 2, sources).chosen
    )
    assert counts == {"a": 8, "b": 2, "c": 10}
    counts = Counter(sources[n] for n in drawn(run_of(tmp_path, 30, shares={"a": 0.9}), {}, 2, sources).chosen)
    assert (counts["a"], sum(counts.values())) == (10, 30)
    # two halves of 3, each rounded by itself, would be 4
    assert len(drawn(run_of(tmp_path, 3, shares={"a": 0.5, "b": 0.5}), {}, 2, sources).chosen) == 3
    with pytest.raises(DataError, match="no problem has the source 'gsm8k'; there are a, b, c"):
        drawn(run_of(tmp_path, 5, shares={"gsm8k": 0.5}), {}, 2, sources)
    with pytest.raises(ConfigError, match="shares add up to 1.2"):
        run_of(tmp_path, 5, shares={"a": 0.6, "b": 0.6})
    with pytest.raises(ConfigError, match="draw = 'difficulty' wants `problems`"):
        parse_experiment({"name": "d", "model": "m", "rounds": [{"draw": "difficulty"}]}, "test")


def judge(run: Run, number: int, correct: dict[str, int | None], answers: int = 2) -> None:
    """Verdicts of a sampled round; None: the verifier failed."""
    empty: dict[str, Any] = dict.fromkeys(name for name, _ in tables.VERDICTS)
    rows = [
        empty
        | {
            "rollout_id": f"{p}/r{number}/s{i}",
            "problem_id": p,
            "outcome": "x",
            "reward": reward,
            "correct": tables.is_correct(reward),
        }
        for p, count in correct.items()
        for i in range(answers)
        for reward in [None if count is None else float(i < count)]
    ]
    with run.writing(run.verdicts(number) / "part-00000.parquet", {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.VERDICTS, rows)


def test_what_is_known_is_counted_in_the_window_and_settled_by_rounds_in_a_row(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2, rounds=4, window=2, retire_after=2)
    judge(run, 0, {"old": 1, "right": 2, "turned": 0, "once": 0})
    judge(run, 1, {"right": 2, "turned": 0, "broken": None})
    judge(run, 2, {"right": 2, "turned": 1})
    known = known_so_far(run, 3)
    assert known["right"] == Known(4, 4, 2, "right")
    assert known["turned"] == Known(4, 1, 2, None)
    assert known["old"] == Known(0, 0, 0, None)
    assert known["once"] == Known(0, 0, 0, None), "one round is not two"
    assert "broken" not in known
    assert known_so_far(run, 0) == {}
    with pytest.raises(DataError, match="is not complete, and round 5 draws by it"):
        known_so_far(run_of(tmp_path, 2, rounds=6), 5)


def test_a_round_is_drawn_recorded_resumed_and_sampled_again_only_if_the_draw_changes(tmp_path: Path) -> None:
    rounds = [{}, {"problems": 3, "draw": "difficulty", "difficulty": {"retire_after": 1}}]
    run = make_run(
        tmp_path,
        made_up_model(tmp_path / "model"),
        rounds=rounds,
        sync={"every_rounds": 2},
        sampling={"problems_per_part": 9},
    )

    def sampled(number: int) -> MadeUpSampler:
        made: list[MadeUpSampler] = []

        def start(*given: Any) -> MadeUpSampler:
            made.append(MadeUpSampler(*given))
            return made[-1]

        generate(run, number, start=start)
        return made[0] if made else MadeUpSampler(tmp_path, run.config.engine)

    sampled(0)
    judge(run, 0, {f"train-{i}": 2 if i < 3 else 1 for i in range(7)})
    assert len(sampled(1).answered) == 6
    rows = pl.read_parquet(draw_file(run, 1))
    assert set(rows.filter(pl.col("state") == "drawn")["problem_id"]) < {f"train-{i}" for i in range(3, 7)}
    assert rows.filter(pl.col("state") == "retired")["problem_id"].to_list() == ["train-0", "train-1", "train-2"]
    details = run.ledger.artifacts()["round_01/1_draw.parquet"].details
    assert told(details) == (
        "drew 3 of 7 problems: 3 tried before, mean pass rate 0.50; retired: 3 always right, 0 always wrong"
    )
    assert sampled(1).answered == []
    judge(run, 0, {f"train-{i}": 2 if i > 3 else 1 for i in range(7)})
    assert len(sampled(1).answered) > 0
    assert set(pl.read_parquet(draw_file(run, 1)).filter(pl.col("state") == "drawn")["problem_id"]) < {
        f"train-{i}" for i in range(4)
    }


def test_every_problem_is_weighed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weighed = list[str]()

    def key(*given: Any) -> float:
        weighed.append(given[-1])
        return 0.0

    monkeypatch.setattr(difficulty, "_key", key)
    drawn(run_of(tmp_path, 12), {})
    assert weighed == NAMES
