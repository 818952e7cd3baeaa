"""Training examples: reads a groups file (tables.GROUPS), checks that it belongs to the round, makes tensors.

Token ids and log-probs stay in the file. A micro-batch's rows are read when its turn comes, in any order (``rows.py``
keeps a small file decoded). Memory holds some numbers for each row.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.model_files.model_folder import limits
from oapl_core.rows import Rows
from oapl_core.token_columns import TokenColumn, columns_of
from oapl_core.training.group_rows import TOKENS, check_rows, facts
from oapl_core.turns import is_masked, trained

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor

UNKNOWN = "unknown"
"""Policy of imported rollouts whose sampler nobody recorded."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: right-padded rows of prompt + response. Column t of [S, T - 1] tensors concerns token t + 1."""

    id_ST: "Tensor"
    prompt_length_S: "Tensor"
    length_S: "Tensor"
    compared_ST: "Tensor"
    """Log-probs that the ratio is taken against, recorded or rescored, [S, T - 1], 0 outside the response."""
    row_S: "Tensor"
    """Row of the examples."""
    weight: float = 1.0
    """0 for the stand-in that a rank without work runs."""
    start_ST: "Tensor | None" = None
    """Log-probs of the weights that the round starts from, [S, T - 1], 0 outside the response; only if asked for."""
    columns: "tuple[Tensor, ...]" = ()
    """Numbers of each token, [S, T, *shape], by the columns of the examples: -1 for padding and last tokens."""
    sampled_ST: "Tensor | None" = None
    """Which tokens the model sampled, [S, T - 1], anything outside the response; unset: all of a response."""

    def given(self) -> tuple[Any, ...]:
        """Return a policy's inputs, on the host: the policy sends on what its device needs (``placing.py``)."""
        more: list[Any] = [self.columns or None, self.sampled_ST]
        while more and more[-1] is None:  # a policy of single turns is called as it was before there were others
            more.pop()
        return (self.id_ST, self.prompt_length_S, self.length_S, *more)

    @cached_property
    def mask_ST(self) -> "Tensor":
        """[S, T - 1], true where the model sampled a token: what has a log-prob and a gradient. On the host."""
        from oapl_core.training.layouts.placing import response_mask

        return response_mask(self.prompt_length_S, self.length_S, self.id_ST.shape[1], self.sampled_ST)


@dataclass(frozen=True)
class Examples:
    """Every row of a groups file."""

    rollout_ids: "pa.ChunkedArray"
    prompt_length_S: "NDArray[np.int32]"
    response_length_S: "NDArray[np.int32]"
    sampled_S: "NDArray[np.int32]"
    """Tokens of each response that the model sampled: all but those of an environment."""
    reward_S: "NDArray[np.float32]"
    correct_S: "NDArray[np.bool_]"
    group_S: "NDArray[np.int32]"
    temperature: float
    tokens: Rows
    """Prompt, response and the engine's log-probs of each row."""
    recorded_S: "NDArray[np.bool_]"
    """Whether the engine's log-probs are known."""
    rescored: Rows | None = None
    """Log-probs of the trainer under the same policy (tables.REFERENCES); if set, they replace the recorded ones."""
    start: Rows | None = None
    """Log-probs of the weights that the round starts from (tables.REFERENCES), for objectives that need them too."""
    columns: tuple[TokenColumn, ...] = ()
    """Optional columns of tokens that the file has."""
    is_masked: bool = False
    """Whether the file says which tokens the model sampled; else it sampled all."""
    own_S: "NDArray[np.bool_] | None" = None
    """Whether a row is of the policy that sampled the round here; unset: all are."""
    lag_S: "NDArray[np.int32] | None" = None
    """Rounds between the weights that sampled a row and those that the round starts from; unset: one for all."""

    @property
    def is_compared(self) -> bool:
        """Whether there is a policy to take ratios against: demonstrations have none."""
        return self.rescored is not None or bool(self.recorded_S.all())

    def recorded_logprobs(self, row: int) -> "Tensor | None":
        """Read the engine's log-probs of a response, [T]; None if nobody recorded them."""
        import torch

        if not self.recorded_S[row]:
            return None
        return torch.from_numpy(_values(self.tokens[row]["behavior_logprobs"]).copy())

    @property
    def own_rows(self) -> list[int]:
        """Rows of the policy that sampled the round here."""
        rows: list[int] = list(range(len(self.lengths))) if self.own_S is None else self.own_S.nonzero()[0].tolist()
        return rows

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of prompt and response of each row."""
        lengths: list[int] = (self.prompt_length_S + self.response_length_S).tolist()
        return lengths

    @cached_property
    def prompts(self) -> list[tuple[int, int]]:
        """Group of each row, and tokens of its prompt: a group has one prompt."""
        return list(zip(self.group_S.tolist(), self.prompt_length_S.tolist(), strict=True))

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the tensors of ``rows``; without rows a stand-in of one two-token sequence with weight 0."""
        import numpy as np
        import torch

        prompt_lengths = [int(self.prompt_length_S[i]) for i in rows]
        lengths = [n + int(self.response_length_S[i]) for n, i in zip(prompt_lengths, rows, strict=True)]
        ids = np.zeros((max(1, len(rows)), max(lengths, default=2)), dtype=np.int64)
        compared = np.zeros((len(ids), ids.shape[1] - 1), dtype=np.float32)
        start = np.zeros_like(compared)
        columns = [np.full((*ids.shape, *one.shape), -1, dtype=np.int16) for one in self.columns if rows]
        sampled = np.ones(compared.shape, dtype=bool) if self.is_masked else None
        for s, i in enumerate(rows):
            row, first, end = self.tokens[i], prompt_lengths[s], lengths[s]
            ids[s, :first], ids[s, first:end] = _values(row["prompt_ids"]), _values(row["response_ids"])
            response = slice(first - 1, end - 1)  # column t scores token t + 1
            if self.rescored is not None:
                compared[s, response] = _values(self.rescored[i]["reference_logprobs"])
            elif self.recorded_S[i]:
                compared[s, response] = _values(row["behavior_logprobs"])
            if self.start is not None:
                start[s, response] = _values(self.start[i]["reference_logprobs"])
            if sampled is not None and (mask := trained(row)) is not None:
                sampled[s, response] = mask
            for column, numbers in zip(self.columns, columns, strict=True):
                numbers[s, : end - 1] = column.read(row[column.name][0])
        return Batch(
            torch.from_numpy(ids),
            torch.tensor(prompt_lengths or [1]),
            torch.tensor(lengths or [2]),
            torch.from_numpy(compared),
            torch.tensor(list(rows) or [0]),
            float(bool(rows)),
            None if self.start is None else torch.from_numpy(start),
            tuple(map(torch.from_numpy, columns)),
            None if sampled is None else torch.from_numpy(sampled),
        )


def read_examples(
    path: Path, expected_hash: str, model_dir: Path, recorded: bool = True, known: Collection[str] = ()
) -> Examples:
    """Read and check a groups file.

    Args:
        path: 3_groups.parquet.
        expected_hash: identity of the round's policy, which must have sampled every row that ``known`` did not.
        model_dir: that policy's folder; its config says how long a sequence may be and which ids exist.
        recorded: whether the engine's log-probs are needed; without them imported rollouts of an unknown policy pass.
        known: policies of imported or replayed rollouts, whose log-probs are recorded.

    Raises:
        DataError: no row, rows of another policy or of several temperatures, rows that are too long or damaged.
    """
    (longest, vocabulary), columns = limits(model_dir), columns_of(model_dir)
    table = facts(path, vocabulary, columns)
    if not table.num_rows:
        raise DataError(f"{path}: has no group to train on; the ledger counts why every rollout was dropped")
    hashes = sorted(map(str, table["policy_hash"].unique().to_pylist()))
    if not set(hashes) <= {expected_hash, *known, *([] if recorded else [UNKNOWN])}:
        raise DataError(
            f"{path}: was sampled by policy {', '.join(hashes)}, but the round's policy is {expected_hash} "
            f"({model_dir}); delete the round's folder and run the same command again"
        )
    temperatures = table["temperature"].unique().to_pylist()
    # one temperature: the output layer divides all logits by the same
    if len(temperatures) != 1 or not temperatures[0] > 0:
        raise DataError(f"{path}: was sampled at temperatures {temperatures}, not at one above 0; sample it again")
    check_rows(table, path, longest, vocabulary, recorded)
    own_S = table["policy_hash"].to_numpy() == expected_hash
    used = [name for name in tables.CARRIED if any(table[name].to_pylist())]  # flags, in place of lists
    return Examples(
        rollout_ids=table["rollout_id"],
        prompt_length_S=table["prompt_ids"].to_numpy(),
        response_length_S=table["response_ids"].to_numpy(),
        sampled_S=table["sampled"].to_numpy(),
        correct_S=table["correct"].to_numpy().copy(),
        reward_S=table["reward"].to_numpy().copy(),  # torch wants arrays that it may write to
        group_S=table["group"].to_numpy().copy(),
        temperature=float(temperatures[0]),
        tokens=Rows(path, tables.GROUPS, (*TOKENS, *used)),
        recorded_S=table["behavior_logprobs"].to_numpy() > 0,
        columns=tuple(one for name, one in columns.items() if name in used),
        is_masked=is_masked(used),
        own_S=None if own_S.all() else own_S,
        lag_S=table[tables.LAG].to_numpy() if table[tables.LAG].null_count == 0 else None,
    )


def _values(column: "pa.ChunkedArray") -> "NDArray[Any]":
    """Return the values of a column's single list."""
    values: NDArray[Any] = column.chunk(0).flatten().to_numpy(zero_copy_only=False)
    return values
