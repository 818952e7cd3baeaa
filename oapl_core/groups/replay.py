"""Groups of earlier rounds that a round trains on again (`[[rounds]] replay`): which ones, and their rows.

Reads the groups files of those rounds. It reads every row's group number, and the columns for training from row groups
that hold a drawn group. A group stays whole and keeps its policy, so its value is estimated from the rollouts of one
policy. Each row keeps the log-probs that its own policy gave. Groups that an earlier round replayed are not replayed
again: they would count twice.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.groups.policies import sampling_policies
from oapl_core.rows import Rows
from oapl_core.run_folder.recorded import POLICIES
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


@dataclass(frozen=True)
class Drawn:
    """Groups of one earlier round that were drawn for replay."""

    round: int
    lag: int
    """Rounds between the weights that sampled it and those that the training starts from."""
    path: Path
    places: Sequence[Sequence[int]]
    """Rows of each group."""
    groups_there: int
    """Groups of that round, before the draw."""
    policies: frozenset[str]

    @property
    def rollouts(self) -> int:
        """Rows that are replayed."""
        return sum(map(len, self.places))


class Replay:
    """Groups of earlier rounds that a round trains on beside its own."""

    def __init__(self, run: Run, number: int, fresh: int) -> None:
        """Draw for round ``number``, which keeps so many ``fresh`` rollouts of its own. Raises what ``draw`` does."""
        self._drawn = draw(run, number, fresh)
        self.lag = _lag_of(run, number, number)
        """Rounds between the weights that sampled this round and those that it trains from."""

    @property
    def rollouts(self) -> int:
        """Rows that are replayed."""
        return sum(drawn.rollouts for drawn in self._drawn)

    @property
    def details(self) -> dict[str, Any]:
        """Description of the drawn groups for the ledger, by round."""
        return {
            str(earlier.round): {
                "groups": len(earlier.places),
                "groups_there": earlier.groups_there,
                "rollouts": earlier.rollouts,
                "lag": earlier.lag,
                POLICIES: sorted(earlier.policies),
            }
            for earlier in self._drawn
        }

    def batches(self, first_group: int, most_tokens: int) -> "Iterator[pa.Table]":
        """Yield tables of GROUPS, numbered from ``first_group`` on, of so many tokens or a single row.

        Raises:
            DataError: a row has no log-probs of the policy that sampled it.
        """
        for drawn in self._drawn:
            for batch in _batches(drawn, first_group, most_tokens):
                yield batch.cast(tables.schema_of(tables.GROUPS))
            first_group += len(drawn.places)


def _lag_of(run: Run, number: int, sampled: int) -> int:
    return number - run.config.sampling_round(sampled)


def draw(run: Run, number: int, fresh: int) -> list[Drawn]:
    """Draw whole groups of the rounds before ``number``, so many that they are the asked share beside ``fresh``
    rollouts.

    Seeded by the run and the round: the same whenever asked, and a round's draw does not depend on another's.

    Raises:
        DataError: a round's groups are missing, or were sampled by a policy that the run does not know.
    """
    replay = run.config.rounds[number].replay
    assert replay, "only a round that replays loads this"
    frames = {k: _groups(run, k) for k in run.config.groups_before(number)}
    # one shuffle over all rounds: each of their groups has the same chance, whichever round kept more
    every = [(k, group) for k, frame in frames.items() for group in range(len(frame))]
    random.Random(derive_seed(run.config.seed, "replay", number)).shuffle(every)
    wanted, chosen = round(fresh * replay.share / (1.0 - replay.share)), dict[int, list[int]]()
    for k, group in every:
        rows = frames[k]["rows"][group]
        # whole groups or nothing: part of one would have another value
        if rows > wanted:
            break
        wanted -= rows
        chosen.setdefault(k, []).append(group)
    return [
        Drawn(
            k,
            _lag_of(run, number, k),
            run.groups(k),
            [frames[k]["place"][group].to_list() for group in sorted(chosen.get(k, ()))],
            len(frames[k]),
            frozenset(frames[k]["policy_hash"].to_list()),
        )
        for k in frames
    ]


def _groups(run: Run, number: int) -> "pl.DataFrame":
    """Read a row for each group that round ``number`` sampled itself: its rows in the file, their number, and their
    policy.
    """
    import polars as pl

    path = run.groups(number)
    entry = run.ledger.artifacts().get(run.name(path))
    if entry is None or run.name(path) in run.ledger.removals():
        raise DataError(
            f"{path}: is not there to be replayed; make it again with --redo groups --round {number}, or replay fewer "
            "rounds"
        )
    # two columns of numbers and names; tokens stay on the disk until a group is drawn
    read = tables.read_table(path, tables.GROUPS, ["group", "policy_hash"])
    frame = pl.DataFrame(read).with_row_index("place")
    # a round's own groups have the first numbers, those that it replayed the ones after them
    own = frame.filter(pl.col("group") < entry.details["kept_groups"])
    unknown = set(own["policy_hash"].unique()) - sampling_policies(run, number)
    if unknown:
        raise DataError(f"{path}: was sampled by {', '.join(sorted(unknown))}, which no rollouts of the run name")
    return own.group_by("group", maintain_order=True).agg(
        "place", pl.len().alias("rows"), pl.col("policy_hash").first()
    )


def _batches(drawn: Drawn, first_group: int, most_tokens: int) -> "Iterator[pa.Table]":
    """Yield the rows of the drawn groups of one round."""
    import pyarrow as pa

    # the lag that an earlier file has was that of another training
    read = [name for name, _ in tables.GROUPS if name != tables.LAG]
    stored, held, tokens = Rows(drawn.path, tables.GROUPS, read), list[pa.Table](), 0
    for number, places in enumerate(drawn.places, start=first_group):
        for place in places:
            row = stored[place]  # in the file's order, so that each row group is decoded once
            size = _checked(row, drawn)
            if held and tokens + size > most_tokens:
                yield pa.concat_tables(held)
                held, tokens = [], 0
            new = {"group": pa.array([number], pa.int32()), tables.LAG: pa.array([drawn.lag], pa.int32())}
            held.append(pa.table({name: new[name] if name in new else row[name] for name, _ in tables.GROUPS}))
            tokens += size
    if held:
        yield pa.concat_tables(held)


def _checked(row: "pa.Table", drawn: Drawn) -> int:
    """Check that a row has a log-prob for each token of its response; returns its tokens."""
    prompt, response, logprobs = (row[name][0] for name in ("prompt_ids", "response_ids", "behavior_logprobs"))
    if not logprobs.is_valid or len(logprobs.values) != len(response.values):
        raise DataError(
            f"{drawn.path}: rollout {row['rollout_id'][0]} has no log-probs of the policy that sampled it, so it "
            "cannot be replayed; leave that round out of `replay`"
        )
    return len(prompt.values) + len(response.values)
