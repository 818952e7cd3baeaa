# %% [markdown]
# # A run's rollouts, from question to figure
#
# Everything that a run sampled lies in Parquet files, one row an answer ([every
# column](../../data/columns.toml#rollouts)). This asks of one round: how much of what was sampled can teach something,
# and are long answers wrong answers?
#
# The first cell makes a run folder from random numbers, in a second and on any machine. For a run of yours take
# `Run.open(Path("../../data/runs/demo-seed0"))` instead: a notebook's cells run in its own folder. To try it:
# `.venv/bin/jupytext --to ipynb docs/notebooks/rollouts.py`, then `.venv/bin/jupyter nbconvert --execute --to html
# docs/notebooks/rollouts.ipynb` or a notebook editor of yours; or any editor with cells.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import polars as pl

from oapl_core import Run
from tests.synthetic_run import Sizes, write_synthetic_run

folder = Path(tempfile.mkdtemp())
run: Run = write_synthetic_run(folder, Sizes(train=120, group=8))
print(sorted(path.name for path in run.root.iterdir()))

# %% [markdown]
# ## Rollouts and verdicts
#
# A verdict belongs to a rollout by `rollout_id`. A reward is null where the verifier failed, which is no 0: such
# answers are left out, as the filter does.

# %%
rollouts = pl.scan_parquet(run.rollouts(0) / "*.parquet")
verdicts = pl.scan_parquet(run.verdicts(0) / "*.parquet")
judged = (
    rollouts.join(verdicts, on="rollout_id")
    .select("problem_id", "rollout_id", "reward", "outcome", "finish_reason", tokens=pl.col("response_ids").list.len())
    .collect()
)
valid = judged.filter(pl.col("reward").is_not_null())
print(f"{len(judged)} rollouts of {judged['problem_id'].n_unique()} problems; no verdict: {len(judged) - len(valid)}")
print(judged.group_by("outcome").len().sort("len", descending=True))

# %% [markdown]
# ## What can teach
#
# A group is the answers to one problem. All wrong, it teaches only what not to say, and is dropped by default (`keep
# = "any_correct"`); all right, it has no advantage; what is between teaches most.

# %%
groups = valid.group_by("problem_id").agg(pass_rate=(pl.col("reward") == 1).mean(), answers=pl.len())
kinds = groups.with_columns(
    kind=pl.when(pl.col("pass_rate") == 0)
    .then(pl.lit("all wrong"))
    .when(pl.col("pass_rate") == 1)
    .then(pl.lit("all right"))
    .otherwise(pl.lit("mixed"))
)
print(kinds.group_by("kind").agg(groups=pl.len(), answers=pl.col("answers").sum()).sort("kind"))

kept = pl.read_parquet(run.groups(0))
assert set(kept["problem_id"]) == set(kinds.filter(pl.col("kind") != "all wrong")["problem_id"]), "what the run kept"

# %% [markdown]
# ## Length
#
# Answers in quarters by their length, with the standard error of each share. Of random numbers nothing is to be
# learnt.

# %%
quarters = (
    valid.with_columns(quarter=pl.col("tokens").rank("ordinal").qcut(4, labels=["1", "2", "3", "4"]))
    .group_by("quarter")
    .agg(tokens=pl.col("tokens").mean(), correct=(pl.col("reward") == 1).mean(), n=pl.len())
    .with_columns(error=(pl.col("correct") * (1 - pl.col("correct")) / pl.col("n")).sqrt())
    .sort("quarter")
)
print(quarters)

# %% [markdown]
# ## The figure

# %% alt="A histogram of problems by share of correct answers, and the share of correct answers by their length"
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
left.hist(groups["pass_rate"], bins=[k / 8 - 1 / 16 for k in range(10)], color="#3f51b5", edgecolor="white")
left.set(xlabel="share of correct answers", ylabel="problems", title="what can teach")
right.errorbar(
    quarters["tokens"], quarters["correct"], yerr=2 * quarters["error"], fmt="o-", color="#c2410c", capsize=3
)
right.set(xlabel="tokens of the answer, mean of a quarter", ylabel="share correct", ylim=(0, 1), title="length")
figure.tight_layout()
plt.show()
