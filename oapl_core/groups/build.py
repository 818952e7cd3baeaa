"""Joins rollouts, verdicts and prompts into groups: ``python -m oapl_core.groups.build RUN_DIR --round N``.

Reads round_NN/1_rollouts, round_NN/2_verdicts (part by part) and prompts.parquet; writes round_NN/3_groups.parquet
(tables.GROUPS, the rows of a group next to each other, samples in order). A group is every valid rollout of one problem
from one policy (imported rollouts may have several). A rollout without a verdict, or with ``verifier_error``, has no
reward: it is left out, not scored 0. Which groups stay is the round's ``keep`` (paper, section 5: at least one correct
answer) and ``pass_rate``. Every row left out is counted by reason in the ledger: kept + dropped = rollouts. With
`replay`, whole groups of earlier rounds follow (``replay.py``). Knows no objective.

Memory holds the keys of the round's rollouts, the prompts, and a row group's tokens, whatever the number of tokens. The
row groups of the output are small, so that a trainer can read single rows in any order (``oapl_core/rows.py``).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import plugins, tables
from oapl_core.errors import DataError
from oapl_core.groups.policies import sampling_policies
from oapl_core.groups.selection import SelectionCounts, select
from oapl_core.groups.trust import UNKNOWN, sampling_facts
from oapl_core.progress import say
from oapl_core.rows import Rows
from oapl_core.run_folder.run import Run, parts_of
from oapl_core.stage import run_verb
from oapl_core.token_columns import COLUMNS

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from oapl_core.groups.replay import Replay

_KEYS = (
    "rollout_id problem_id sample policy_hash response_ids logprobs_mode temperature top_p top_k finish_reason"
).split()
_STORED = ("response_ids", "logprobs", *tables.CARRIED)
_ROW_GROUP_TOKENS = 2**16
"""Tokens of a row group, all of which reading one row at random decodes: docs/benchmarks/store.md."""


def build(run: Run, round_number: int) -> None:
    """Write the round's groups file, unless it is there.

    Raises:
        DataError: parts are missing or damaged, the rollouts come from several policies or from truncated sampling.
    """
    run.check_sampled(round_number)
    chosen_by = run.config.rounds[round_number]
    rollouts, verdicts = _parts(run.rollouts(round_number)), _parts(run.verdicts(round_number))
    unjudged = sorted({p.name for p in rollouts} - {p.name for p in verdicts})
    if unjudged:
        where = f"{run.verdicts(round_number)}: has no {unjudged[0]} ({len(unjudged)} such parts)"
        raise DataError(f"{where}; run the experiment again to verify them")
    path, settings = run.groups(round_number), chosen_by.choice
    if chosen_by.replay:  # the seed decides nothing else here, so that ledgers of other rounds stay as they were
        settings |= {"replay": chosen_by.replay.model_dump(), "seed": run.config.seed}
    asked = [run.problems] if chosen_by.own_filters else []  # those that ship see rewards alone
    before = map(run.groups, run.config.groups_before(round_number))
    inputs = run.inputs([run.prompts, *asked, *rollouts, *verdicts, *before])
    if run.is_done(path, inputs, settings):
        say(f"groups of round {round_number}: done")
        return
    keys = _keys(rollouts)
    _check_sampling(keys, run.rollouts(round_number), sampling_policies(run, round_number))
    judged = _read(verdicts, tables.VERDICTS, ("rollout_id", "reward", "correct", "outcome"))
    # by name: a run without a filter of its own loads no code for one
    call = partial(_called, run, rollouts, verdicts)
    chosen, counts = select(keys, judged, chosen_by.filters, chosen_by.truncated, chosen_by.pass_rate, call)
    replay: Replay | None = None
    if chosen_by.replay:
        replay = plugins.resolve("setting", "rounds.replay")(run, round_number, counts.kept_rollouts)
    with run.writing(path, inputs, settings) as draft:
        own = _batches(chosen, rollouts, run.prompts, replay.lag if replay else None)
        earlier = replay.batches(counts.kept_groups, _ROW_GROUP_TOKENS) if replay else ()
        draft.rows = tables.write_batches(draft.path, tables.GROUPS, chain(own, earlier))
        again = replay.rollouts if replay else 0
        assert draft.rows == counts.kept_rollouts + again, "every chosen rollout is written once"
        policies = keys["policy_hash"].unique(maintain_order=True).to_list()
        group_size = run.config.of_round(round_number).sampling.group_size
        trust = sampling_facts(keys, _expected_problems(run, round_number), group_size)
        trust["kept_without_logprobs"] = int((chosen["logprobs_mode"] == UNKNOWN).sum())
        draft.details = {"policy_hash": policies[0] if len(policies) == 1 else None, **asdict(counts), "trust": trust}
        draft.details |= {"replay": replay.details} if replay else {}
    _tell(round_number, counts)
    if replay:
        say(f"replayed: {again:,} rollouts of earlier rounds, {again / max(1, draft.rows):.0%} of what is trained on")
    missing, expected = trust["missing_samples"], trust["expected_samples"]
    again, cut = trust["duplicate_share"], trust["truncated_share"]
    say(f"{missing:,} of {expected:,} samples missing; {again:.1%} repeat another of their group, {cut:.1%} were cut")


def _called(
    run: Run, rollouts: Sequence[Path], verdicts: Sequence[Path], name: str, left: "pl.DataFrame"
) -> Sequence[str | None]:
    found: Sequence[str | None] = plugins.resolve("setting", "rounds.keep")(
        run.problems, rollouts, verdicts, name, left
    )
    return found


def _tell(number: int, counts: SelectionCounts) -> None:
    say(f"groups of round {number}: {counts}")
    if not counts.kept_rollouts:
        most = max(counts.dropped, key=lambda reason: counts.dropped[reason], default="no rollouts")
        why = f"mostly for {most} ({counts.dropped.get(most, 0)} of {counts.rollouts} rollouts)"
        say(f"groups of round {number}: nothing is left to train on, {why}; rounds.{number}.keep decides")


def _expected_problems(run: Run, round_number: int) -> int:
    import polars as pl

    train = int((pl.Series(tables.read_table(run.prompts, tables.PROMPTS, ["split"])["split"]) == "train").sum())
    return min(train, run.config.rounds[round_number].problems or train)


def _parts(folder: Path) -> list[Path]:
    parts = parts_of(folder)
    if not parts:
        raise DataError(f"{folder}: has no part-*.parquet; run the experiment again to make them")
    return parts


def _read(parts: Sequence[Path], fields: Any, columns: Sequence[str]) -> "pl.DataFrame":
    import polars as pl

    return pl.concat([pl.DataFrame(tables.read_table(part, fields, columns)) for part in parts])


def _keys(rollouts: Sequence[Path]) -> "pl.DataFrame":
    """Read the columns of every rollout that the choice depends on, with the number of its part and its row there."""
    import polars as pl

    return pl.concat([_keys_of(path).with_columns(part=pl.lit(i, pl.Int32)) for i, path in enumerate(rollouts)])


def _keys_of(path: Path) -> "pl.DataFrame":
    import polars as pl

    size = pl.col("response_ids").list.len().alias("response_tokens")
    # The ids go as soon as they are counted and hashed: of the round's tokens only one row group is in memory.
    same = pl.col("response_ids").hash().alias("response_hash")
    with tables.open_table(path, tables.ROLLOUTS) as file:
        groups = (file.read_row_group(number, columns=_KEYS) for number in range(file.num_row_groups))
        read = chain([file.schema_arrow.empty_table().select(_KEYS)], groups)
        frames = [pl.DataFrame(table).with_columns(size, same).drop("response_ids") for table in read]
    return pl.concat(frames).with_row_index("place")


def _check_sampling(keys: "pl.DataFrame", folder: Path, known: Collection[str]) -> None:
    """Refuse log-probs that are not those of a known policy's own distribution: log-ratios would mean nothing."""
    hashes = keys["policy_hash"].unique().sort().to_list()
    if len(hashes) > 1 and not set(hashes) <= set(known):
        raise DataError(
            f"{folder}: was sampled by several policies ({', '.join(hashes)}); delete the folder and sample again"
        )
    # A temperature divides the logits; "raw" log-probs are of the logits before that, so they fit at temperature 1
    # alone. Top-p and top-k make some tokens impossible, which no log-prob of the whole vocabulary shows.
    raw_but_scaled = keys["logprobs_mode"].str.starts_with("raw") & (keys["temperature"] != 1.0)
    foreign = keys.filter((keys["top_p"] < 1.0) | (keys["top_k"] > 0) | raw_but_scaled)
    if len(foreign):
        raise DataError(
            f"{folder}: rollout {foreign['rollout_id'][0]} ({len(foreign)} such rows) has log-probs of another "
            "distribution than it was sampled from; sample the round again with top_p=1 and top_k off, and at a "
            "temperature other than 1 with processed log-probs"
        )


def _batches(chosen: "pl.DataFrame", rollouts: Sequence[Path], prompts: Path, lag: int | None) -> "Iterator[pa.Table]":
    """Yield tables of GROUPS in order, of _ROW_GROUP_TOKENS or a single row; fewer tokens if these have numbers."""
    import polars as pl

    asked = tables.read_table(prompts, tables.PROMPTS, ("problem_id", "prompt_ids"))
    index = {problem: i for i, problem in enumerate(asked["problem_id"].to_pylist())}
    prompt_ids = asked["prompt_ids"].combine_chunks()
    sizes = pl.Series("prompt_tokens", prompt_ids.value_lengths(), pl.Int64)
    for part, path in enumerate(rollouts):
        # A problem lies in one part (`select` holds that), so parts one after another leave groups whole and in order.
        rows = chosen.filter(pl.col("part") == part).sort("group", "sample")
        if rows.is_empty():
            continue
        unknown = [problem for problem in rows["problem_id"] if problem not in index]
        if unknown:
            raise DataError(
                f"{prompts}: has no prompt for problem {unknown[0]} of {path}; delete the round's folder and run again"
            )
        asked_row = rows["problem_id"].replace_strict(index, return_dtype=pl.Int64)
        stored = Rows(path, tables.ROLLOUTS, _STORED)
        tokens = sizes.gather(asked_row) + rows["response_tokens"]
        # numbers of tokens are many times the tokens' own bytes, and of one row as of all
        numbers = [stored[rows["place"][0]][name][0] for name in COLUMNS]
        if size := sum(one.as_buffer().size for one in numbers if one.is_valid):
            tokens *= 1 + size // (tokens[0] * tables.TOKEN_BYTES)
        for start, stop in _cuts(tokens.to_list()):
            yield _batch(rows[start:stop], stored, prompt_ids.take(asked_row[start:stop].to_arrow()), lag)


def _cuts(tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the consecutive ranges of rows that hold at most _ROW_GROUP_TOKENS together; a longer row goes alone."""
    start, held = 0, 0
    for row, size in enumerate(tokens):
        if row > start and held + size > _ROW_GROUP_TOKENS:
            yield start, row
            start, held = row, 0
        held += size
    yield start, len(tokens)


def _batch(rows: "pl.DataFrame", stored: Rows, prompt_ids: "pa.Array", lag: int | None) -> "pa.Table":
    """Join the chosen ``rows`` of one part with their tokens and prompts."""
    import pyarrow as pa

    tokens = pa.concat_tables([stored[place] for place in rows["place"]])
    columns = {name: rows[name].to_arrow() for name, _ in tables.GROUPS if name in rows.columns}
    columns |= {"prompt_ids": prompt_ids, "response_ids": tokens["response_ids"]}
    columns["behavior_logprobs"] = tokens["logprobs"]
    columns[tables.LAG] = pa.nulls(len(rows), pa.int32()) if lag is None else pa.repeat(lag, len(rows))
    columns |= {name: tokens[name] for name in tables.CARRIED}
    return pa.table({name: columns[name] for name, _ in tables.GROUPS}).cast(tables.schema_of(tables.GROUPS))


if __name__ == "__main__":
    raise SystemExit(run_verb(build, has_round=True))
