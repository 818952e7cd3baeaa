"""Joins rollouts, verdicts and prompts into groups: ``python -m oapl_core.groups.build RUN_DIR --round N``.

Reads round_NN/1_rollouts, round_NN/2_verdicts (part by part) and prompts.parquet; writes round_NN/3_groups.parquet
(tables.GROUPS, the rows of a group next to each other, samples in order). A group is every valid rollout of one problem
from one policy; a rollout without a verdict, or with ``verifier_error``, has no reward: it is left out, not scored 0.
Which groups stay is the round's ``keep`` (paper, section 5: at least one correct answer). Every row left out is counted
by reason in the ledger: kept + dropped = rollouts. Knows no objective.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.artifacts import Run
from oapl_core.errors import DataError
from oapl_core.groups.selection import select
from oapl_core.groups.trust import sampling_facts
from oapl_core.progress import say
from oapl_core.stage import run_verb

if TYPE_CHECKING:
    import polars as pl

_KEYS = (
    "rollout_id", "problem_id", "sample", "policy_hash", "response_ids", "logprobs_mode", "temperature",
    "top_p", "top_k", "finish_reason",
)  # fmt: skip


def build(run: Run, round_number: int) -> None:
    """Write the round's groups file, unless it is there.

    Raises:
        DataError: parts are missing or damaged, the rollouts come from several policies or from truncated sampling.
    """
    if not 0 <= round_number < len(run.config.rounds):
        raise DataError(f"round {round_number}: the experiment has rounds 0..{len(run.config.rounds) - 1}")
    keep = run.config.rounds[round_number].keep
    rollouts, verdicts = _parts(run.rollouts(round_number)), _parts(run.verdicts(round_number))
    lacking = sorted({p.name for p in rollouts} - {p.name for p in verdicts})
    if lacking:
        where = f"{run.verdicts(round_number)}: has no {lacking[0]} ({len(lacking)} such parts)"
        raise DataError(f"{where}; run the experiment again to verify them")
    path, settings = run.groups(round_number), {"keep": keep}
    inputs = run.inputs([run.prompts, *rollouts, *verdicts])
    if run.is_done(path, inputs, settings):
        say(f"groups of round {round_number}: done")
        return
    keys = _keys(rollouts)
    _check_sampling(keys, run.rollouts(round_number))
    chosen, counts = select(keys, _read(verdicts, tables.VERDICTS, ("rollout_id", "reward", "outcome")), keep)
    with run.writing(path, inputs, settings) as draft:
        draft.rows = tables.write_table(draft.path, tables.GROUPS, _rows(chosen, rollouts, run.prompts))
        assert draft.rows == counts.kept_rollouts, "every chosen rollout is written once"
        policy = keys["policy_hash"][0] if len(keys) else None
        trust = sampling_facts(keys, _expected_problems(run, round_number), run.config.sampling.group_size)
        draft.details = {"policy_hash": policy, **counts.details(), "trust": trust}
    say(f"groups of round {round_number}: {counts}")
    say(
        f"of {trust['expected_samples']:,} samples {trust['missing_samples']:,} are missing; {trust['duplicate_share']:.1%}"
        f" repeat another of their group, {trust['truncated_share']:.1%} were cut at the length limit"
    )


def _expected_problems(run: Run, round_number: int) -> int:
    import polars as pl

    train = int((pl.Series(tables.read_table(run.prompts, tables.PROMPTS, ["split"])["split"]) == "train").sum())
    return min(train, run.config.rounds[round_number].problems or train)


def _parts(folder: Path) -> list[Path]:
    parts = sorted(folder.glob("part-*.parquet"))
    if not parts:
        raise DataError(f"{folder}: has no part-*.parquet; run the experiment again to make them")
    return parts


def _read(parts: Sequence[Path], fields: Any, columns: Sequence[str]) -> "pl.DataFrame":
    import polars as pl

    return pl.concat([pl.DataFrame(tables.read_table(part, fields, columns)) for part in parts])


def _keys(rollouts: Sequence[Path]) -> "pl.DataFrame":
    """What the choice depends on, of every rollout, with the number of the part it lies in."""
    import polars as pl

    size = pl.col("response_ids").list.len().alias("response_tokens")
    same = pl.col("response_ids").hash().alias("response_hash")
    frames = [_read([path], tables.ROLLOUTS, _KEYS).with_columns(size, same).drop("response_ids") for path in rollouts]
    return pl.concat([frame.with_columns(part=pl.lit(i, pl.Int32)) for i, frame in enumerate(frames)])


def _check_sampling(keys: "pl.DataFrame", folder: Path) -> None:
    """The engine's log-probs must be those of one policy's own distribution, or the log-ratios mean nothing."""
    hashes = keys["policy_hash"].unique().sort().to_list()
    if len(hashes) > 1:
        raise DataError(
            f"{folder}: was sampled by several policies ({', '.join(hashes)}); delete the folder and sample again"
        )
    raw_but_scaled = keys["logprobs_mode"].str.starts_with("raw") & (keys["temperature"] != 1.0)
    foreign = keys.filter((keys["top_p"] < 1.0) | (keys["top_k"] > 0) | raw_but_scaled)
    if len(foreign):
        raise DataError(
            f"{folder}: rollout {foreign['rollout_id'][0]} ({len(foreign)} such rows) has log-probs of another "
            "distribution than it was sampled from; sample the round again with temperature=1, top_p=1 and top_k off"
        )


def _rows(chosen: "pl.DataFrame", rollouts: Sequence[Path], prompts: Path) -> Iterator[dict[str, Any]]:
    """Rows of tables.GROUPS in order; one rollout part is in memory at a time."""
    import polars as pl

    prompt_ids = _read([prompts], tables.PROMPTS, ("problem_id", "prompt_ids"))
    order = [name for name, _ in tables.GROUPS]
    for part, path in enumerate(rollouts):
        mine = chosen.filter(pl.col("part") == part)
        if mine.is_empty():
            continue
        tokens = _read([path], tables.ROLLOUTS, ("rollout_id", "response_ids", "logprobs"))
        joined = mine.join(
            tokens.rename({"logprobs": "behavior_logprobs"}), on="rollout_id", how="left", validate="1:1"
        )
        joined = joined.join(prompt_ids, on="problem_id", how="left", validate="m:1")
        unknown = joined.filter(pl.col("prompt_ids").is_null())["problem_id"]
        if len(unknown):
            raise DataError(
                f"{prompts}: has no prompt for problem {unknown[0]} of {path}; delete the round's folder and run again"
            )
        yield from joined.sort("group", "sample").select(order).iter_rows(named=True)


if __name__ == "__main__":
    raise SystemExit(run_verb(build, has_round=True))
