"""Groups of earlier rounds beside a round's own: share, policies, lag, log-probs; what is read and refused."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from oapl_core import tables
from oapl_core.changing.cleaning import CleaningRules, candidates
from oapl_core.errors import ConfigError, DataError
from oapl_core.groups.build import build
from oapl_core.groups.replay import draw
from oapl_core.rows import Rows
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.tables import TURNS
from oapl_core.training.examples import read_examples
from oapl_core.training.job import make_job
from tests.core.groups.test_build import rollout, verdict
from tests.tiny_model import write_tiny_model

PROBLEMS = [f"p{number}" for number in range(30)]
POLICIES = ("aaa", "bbb", "ccc")


def make_run(folder: Path, model: Path | None = None, replay: dict[str, Any] | None = None, **changes: Any) -> Run:
    problems = dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl")
    last = {"replay": replay or {"rounds": 2, "share": 0.3}}
    values = {"name": "g", "runs_dir": folder, "model": model or folder, "problems": problems}
    return Run.create(parse_experiment({**values, "rounds": [{}, {}, last], **changes}, "test"))


def write_rounds(run: Run, tokens: int = 2, turned: Collection[int] = (), **changes: Any) -> None:
    """Three rounds of all problems, four answers each, two of them correct; b differs from round to round.

    In rounds of ``turned`` the second half of an answer is an environment's.
    """
    with run.writing(run.prompts, {}, {}) as draft:
        rows = [{"problem_id": p, "split": "train", "prompt": p, "prompt_ids": [1, 9]} for p in PROBLEMS]
        draft.rows = tables.write_table(draft.path, tables.PROMPTS, rows)
    for number, policy in enumerate(POLICIES):
        given = {"policy_hash": policy, "response_ids": [5] * tokens, "logprobs": [-0.5 - number] * tokens} | changes
        sampled, judged = [], []
        for problem in PROBLEMS:
            for i in range(4):
                name = f"{problem}/r{number:02d}/s{i}"
                sampled.append(rollout(problem, i, round=number, **given) | {"rollout_id": name})
                judged.append(verdict(problem, i, float(i < 2)) | {"rollout_id": name})
        if number in turned:
            empty: dict[str, Any] = dict.fromkeys(name for name, _ in TURNS)
            mask = [place < tokens // 2 for place in range(tokens)]
            logprobs = [-0.5 - number if own else 0.0 for own in mask]
            sampled = [row | empty | {"loss_mask": mask, "logprobs": logprobs} for row in sampled]
        fields = tables.ROLLOUTS
        parts = ((run.rollouts(number), fields, sampled), (run.verdicts(number), tables.VERDICTS, judged))
        for folder, fields, rows in parts:
            with run.writing(folder / "part-00000.parquet", {}, {}) as draft:
                draft.rows = tables.write_table(draft.path, fields, rows)
                draft.details = {"policy_hash": policy}
    for number in (0, 1):
        build(run, number)


def test_whole_groups_of_the_last_rounds_make_the_share_with_their_policies_and_log_probs(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rounds(run)
    build(run, 2)
    groups = pl.read_parquet(run.groups(2))
    fresh, again = groups.filter(pl.col("lag") == 0), groups.filter(pl.col("lag") > 0)
    assert fresh["policy_hash"].unique().to_list() == ["ccc"]
    assert len(fresh) == 120
    assert len(again) == 48, "30 % of all, in whole groups: 120 x 0.3 / 0.7 is 51.4"
    assert set(again.select("policy_hash", "lag").unique().rows()) == {("aaa", 2), ("bbb", 1)}
    for name, lag, logprob in (("aaa", 2, -0.5), ("bbb", 1, -1.5)):
        mine = again.filter(pl.col("lag") == lag)
        assert mine["policy_hash"].unique().to_list() == [name]
        assert mine["behavior_logprobs"].explode().unique().to_list() == [logprob]
    sizes = groups.group_by("group", maintain_order=True).agg(pl.len(), pl.col("policy_hash", "problem_id").n_unique())
    assert sizes["group"].to_list() == list(range(42)), "numbered without gaps, rows of a group next to each other"
    assert set(sizes.drop("group").rows()) == {(4, 1, 1)}, "one problem and one policy, and all of its answers"
    assert again.group_by("group").agg(pl.col("reward").sum())["reward"].unique().to_list() == [2.0]
    told = run.ledger.artifacts()["round_02/3_groups.parquet"].details["replay"]
    assert {k: (one["lag"], one["policies"], one["groups_there"]) for k, one in told.items()} == {
        "0": (2, ["aaa"], 30),
        "1": (1, ["bbb"], 30),
    }
    assert sum(one["rollouts"] for one in told.values()) == 48


@pytest.mark.parametrize("turned", [{0, 2}, {1}])
def test_each_row_keeps_its_mask_beside_rows_without_one(tmp_path: Path, turned: set[int]) -> None:
    run = make_run(tmp_path)
    write_rounds(run, tokens=4, turned=turned)
    build(run, 2)
    groups = pl.read_parquet(run.groups(2))
    assert groups["lag"].null_count() == 0
    for number, policy in enumerate(POLICIES):
        masks = groups.filter(pl.col("policy_hash") == policy)["loss_mask"].unique().to_list()
        assert masks == ([[True, True, False, False]] if number in turned else [None])
    single = pl.read_parquet(run.groups(0 if 0 not in turned else 1))
    assert single.select("loss_mask", "lag").null_count().row(0) == (len(single),) * 2


def test_values_are_those_of_each_problem_and_policy(tmp_path: Path) -> None:
    """Rewards of the same problems are better in round 2: one value for both policies would be another number."""
    import torch

    model = write_tiny_model(tmp_path / "model")
    run = make_run(tmp_path, model)
    write_rounds(run)
    rows = [verdict(p, i, 1.0) | {"rollout_id": f"{p}/r02/s{i}"} for p in PROBLEMS for i in range(4)]
    with run.writing(run.verdicts(2) / "part-00000.parquet", {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.VERDICTS, rows)
    build(run, 2)
    known = make_job_policies(run)
    examples = read_examples(run.groups(2), "ccc", model, known=known)
    assert known == {"aaa", "bbb"}
    advantage_S = run.config.objective.loaded("behavior").advantages(
        torch.from_numpy(examples.reward_S), torch.from_numpy(examples.group_S)
    )
    value = math.log((1 + math.e) / 2)  # beta1 ln mean exp(r / beta1) of two correct answers of four
    own = torch.zeros(len(advantage_S), dtype=torch.bool)
    own[examples.own_rows] = True
    assert advantage_S[own].abs().max() == 0
    again = torch.from_numpy(examples.reward_S)[~own]
    assert torch.allclose(advantage_S[~own], again.double() - value, atol=1e-12)
    assert examples.lag_S is not None
    assert sorted(set(examples.lag_S.tolist())) == [0, 1, 2]


def make_job_policies(run: Run) -> set[str]:
    with run.writing(run.checkpoint(1, 1), {}, {}) as draft:
        draft.path.mkdir()
    return make_job(run, 2).other_policies


def test_a_policy_that_nothing_names_is_refused(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    run = make_run(tmp_path, model)
    write_rounds(run)
    build(run, 2)
    with pytest.raises(DataError, match=r"was sampled by policy aaa, bbb, ccc, but the round's policy is ccc"):
        read_examples(run.groups(2), "ccc", model, known={"aaa"})
    table = pq.read_table(run.groups(1))
    other = table.set_column(3, "policy_hash", [["zzz"] * len(table)])
    pq.write_table(other.cast(table.schema), run.groups(1))
    with pytest.raises(DataError, match="was sampled by zzz, which no rollouts of the run name"):
        draw(run, 2, 120)


def test_the_same_rows_again_other_rows_with_another_seed_and_nothing_is_done_twice(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        run = make_run(tmp_path / name, seed=seed)
        write_rounds(run)
        build(run, 2)
        found.append(run.groups(2).read_bytes())
        written = len(run.ledger.artifacts()), run.groups(2).stat().st_mtime_ns
        build(run, 2)
        assert (len(run.ledger.artifacts()), run.groups(2).stat().st_mtime_ns) == written
    assert found[0] == found[1] != found[2]


def test_no_more_row_groups_are_read_than_hold_drawn_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Rows] = []

    class Counting(Rows):
        def __init__(self, path: Path, fields: Any, columns: Any) -> None:
            super().__init__(path, fields, columns)
            made.append(self)

    run = make_run(tmp_path, replay={"rounds": 1, "share": 0.05})
    monkeypatch.setattr("oapl_core.groups.build._ROW_GROUP_TOKENS", 64)  # two rows of 22 tokens to a row group
    write_rounds(run, tokens=20)
    monkeypatch.setattr("oapl_core.groups.replay.Rows", Counting)
    (drawn,) = draw(run, 2, 120)
    build(run, 2)
    (stored,) = made
    row_groups = pq.ParquetFile(run.groups(1)).num_row_groups
    assert row_groups == 60
    assert drawn.rollouts == 4
    assert stored.reads == 2, "one group of four answers lies in two of the sixty"


def test_what_was_replayed_is_not_replayed_again_and_a_first_round_has_nothing(tmp_path: Path) -> None:
    rounds = [{"replay": {"rounds": 5, "share": 0.5}}] * 3
    run = make_run(tmp_path, rounds=rounds)
    write_rounds(run)
    build(run, 2)
    counts = [run.ledger.artifacts()[f"round_0{k}/3_groups.parquet"].rows for k in range(3)]
    assert counts == [120, 240, 240]
    names = pl.read_parquet(run.groups(2))["rollout_id"]
    assert names.is_unique().all()


def test_rows_without_log_probs_are_refused_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rounds(run, logprobs=None)
    with pytest.raises(DataError, match="has no log-probs of the policy that sampled it, so it cannot be replayed"):
        build(run, 2)
    assert not run.groups(2).exists()
    with pytest.raises(ConfigError, match=r"rounds\[2\].replay needs training.reference = 'behavior'"):
        make_run(tmp_path, training={"reference": "reference"})


def test_groups_that_a_later_round_replays_are_not_cleaned_and_may_be_made_again(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rounds(run)
    needed = {one.name: one.needed_for for one in candidates(run, CleaningRules(groups=0))}
    assert set(needed.values()) == {"round 0 is not trained to its end", "round 1 is not trained to its end"}
    run.groups(1).unlink()
    with pytest.raises(DataError, match="round_01/3_groups.parquet: is missing"):
        build(run, 2)


def test_a_round_without_replay_writes_what_it_always_wrote(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rounds(run)
    entry = run.ledger.artifacts()["round_01/3_groups.parquet"]
    assert entry.config == {"keep": "any_correct", "truncated": "keep"}
    assert "replay" not in entry.details
    assert pq.read_schema(run.groups(1)).names == [name for name, _ in tables.GROUPS]
