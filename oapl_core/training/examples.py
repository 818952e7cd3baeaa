"""What is trained on: reads a groups file (tables.GROUPS), checks that it belongs here, makes tensors.

Token ids and log-probs stay in the file: a micro-batch's rows are read when its turn comes, in any order (``rows.py``
keeps a small file decoded). Memory holds some numbers for each row.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.model_folder import limits
from oapl_core.routes import Routing, routing_of
from oapl_core.rows import Rows

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

UNKNOWN = "unknown"
"""Policy of imported rollouts whose sampler nobody recorded."""
_TOKENS = ("prompt_ids", "response_ids", "behavior_logprobs")


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
    route_STLK: "Tensor | None" = None
    """Experts of each token by layer, -1 where nobody stored any: padding and last tokens; unset: of no token."""

    def routes(self, device: "torch.device") -> "tuple[Tensor, ...]":
        """What a policy is given beside tokens and lengths."""
        return () if self.route_STLK is None else (self.route_STLK.to(device),)


@dataclass(frozen=True)
class Examples:
    """Every row of a groups file."""

    rollout_ids: "pa.ChunkedArray"
    prompt_length_S: "NDArray[np.int32]"
    response_length_S: "NDArray[np.int32]"
    reward_S: "NDArray[np.float32]"
    group_S: "NDArray[np.int32]"
    temperature: float
    tokens: Rows
    """Prompt, response and the engine's log-probs of each row."""
    recorded_S: "NDArray[np.bool_]"
    """Whether the engine's log-probs are known."""
    rescored: Rows | None = None
    """What the trainer gives the same policy (tables.REFERENCES); if set, it is compared, not what was recorded."""
    start: Rows | None = None
    """Log-probs of the weights that the round starts from (tables.REFERENCES), for objectives that need them too."""
    routing: Routing | None = None
    """Of the model, if the file has routes."""
    own_S: "NDArray[np.bool_] | None" = None
    """Whether a row is of the policy that sampled the round here; unset: all are."""
    lag_S: "NDArray[np.int32] | None" = None
    """Rounds between the weights that sampled a row and those that the round starts from; unset: one for all."""

    @property
    def is_compared(self) -> bool:
        """Whether there is a policy to take ratios against: demonstrations have none."""
        return self.rescored is not None or bool(self.recorded_S.any())

    def recorded_logprobs(self, row: int) -> "Tensor | None":
        """The engine's log-probs of a response, [T]; None if nobody recorded them."""
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
        """Tensors of ``rows``; without rows a stand-in of one two-token sequence with weight 0."""
        import numpy as np
        import torch

        prompt_lengths = [int(self.prompt_length_S[i]) for i in rows]
        lengths = [n + int(self.response_length_S[i]) for n, i in zip(prompt_lengths, rows, strict=True)]
        ids = np.zeros((max(1, len(rows)), max(lengths, default=2)), dtype=np.int64)
        compared = np.zeros((len(ids), ids.shape[1] - 1), dtype=np.float32)
        start = np.zeros_like(compared)
        routes = self._no_routes(ids.shape) if rows else None
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
            if routes is not None and self.routing:
                routes[s, : end - 1] = self.routing.read(row[tables.ROUTES][0])
        return Batch(
            torch.from_numpy(ids),
            torch.tensor(prompt_lengths or [1]),
            torch.tensor(lengths or [2]),
            torch.from_numpy(compared),
            torch.tensor(list(rows) or [0]),
            float(bool(rows)),
            None if self.start is None else torch.from_numpy(start),
            None if routes is None else torch.from_numpy(routes),
        )

    def _no_routes(self, shape: tuple[int, ...]) -> "NDArray[np.int16] | None":
        import numpy as np

        if self.routing is None:
            return None
        return np.full((*shape, self.routing.layers, self.routing.top_k), -1, dtype=np.int16)


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
    longest, vocabulary = limits(model_dir)
    routing = routing_of(model_dir)
    table = _facts(path, vocabulary, routing)
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
        raise DataError(
            f"{path}: was sampled at temperatures {temperatures}, not at one above 0; sample the round again"
        )
    _check_rows(table, path, longest, vocabulary, recorded)
    is_routed = tables.ROUTES in table.column_names
    own_S = table["policy_hash"].to_numpy() == expected_hash
    return Examples(
        rollout_ids=table["rollout_id"],
        prompt_length_S=table["prompt_ids"].to_numpy(),
        response_length_S=table["response_ids"].to_numpy(),
        reward_S=table["reward"].to_numpy().copy(),  # torch wants arrays that it may write to
        group_S=table["group"].to_numpy().copy(),
        temperature=float(temperatures[0]),
        tokens=Rows(path, tables.GROUPS, (*_TOKENS, *[tables.ROUTES] * is_routed)),
        recorded_S=table["behavior_logprobs"].to_numpy() > 0,
        routing=routing if is_routed else None,
        own_S=None if own_S.all() else own_S,
        lag_S=table[tables.LAG].to_numpy() if tables.LAG in table.column_names else None,
    )


def _values(column: "pa.ChunkedArray") -> "NDArray[Any]":
    """What the one list of a row's column holds."""
    values: NDArray[Any] = column.chunk(0).flatten().to_numpy(zero_copy_only=False)
    return values


def _facts(path: Path, vocabulary: float, routing: Routing | None) -> "pa.Table":
    """A groups file with lengths in place of its lists, and flags of bad rows; one row group is read at a time."""
    import pyarrow as pa

    with tables.open_table(path, tables.GROUPS) as file:
        empty = _without_tokens(file.schema_arrow.empty_table(), vocabulary, routing)
        read = (file.read_row_group(number) for number in range(file.num_row_groups))
        return pa.concat_tables([empty, *(_without_tokens(group, vocabulary, routing) for group in read)])


def _without_tokens(table: "pa.Table", vocabulary: float, routing: Routing | None) -> "pa.Table":
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    foreign, infinite = np.zeros(table.num_rows, dtype=bool), np.zeros(table.num_rows, dtype=bool)
    for name in _TOKENS:
        lists = table[name].combine_chunks()
        values, row_of = lists.flatten().to_numpy(zero_copy_only=False), pc.list_parent_indices(lists).to_numpy()
        if name == "behavior_logprobs":
            infinite[row_of[~np.isfinite(values)]] = True
        else:
            foreign[row_of[(values < 0) | (values >= vocabulary)]] = True
        # lengths take the lists' place: they are all that must be known of every row at once
        lengths = pc.list_value_length(lists).fill_null(0)
        table = table.set_column(table.column_names.index(name), name, lengths)
    if tables.ROUTES in table.column_names:
        lengths = pc.add(table["prompt_ids"], table["response_ids"]).to_pylist()
        routes = zip(table[tables.ROUTES], lengths, strict=True)
        fit = [routing is not None and routing.fits(one, length - 1) for one, length in routes]
        table = table.set_column(table.column_names.index(tables.ROUTES), tables.ROUTES, pa.array(fit, pa.bool_()))
    return table.append_column("foreign", pa.array(foreign)).append_column("infinite", pa.array(infinite))


def _check_rows(table: "pa.Table", path: Path, longest: float, vocabulary: float, recorded: bool) -> None:
    """Refuse by name what cannot be trained on; ``table`` is what _facts returns."""
    import numpy as np

    prompt, response, behavior = (table[name].to_numpy() for name in _TOKENS)

    def refuse(bad: Any, what: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            rows = f"rollout {table['rollout_id'][row]} {what} ({int(bad.sum())} such rows)"
            raise DataError(f"{path}: {rows}; sample the round again")

    # an engine's log-prob for each token, or, where they are rescored anyway, none at all; a part is damage
    unknown = np.zeros(len(behavior), dtype=bool) if recorded else behavior == 0
    refuse((response != behavior) & ~unknown, "has not one log-prob for each response token")
    refuse((response == 0) | (prompt == 0), "has an empty prompt or response")
    refuse(prompt + response > longest, f"is longer than the model's {longest} positions")
    refuse(table["infinite"].to_numpy(), "has a log-prob that is not finite")
    refuse(~np.isfinite(table["reward"].to_numpy()), "has a reward that is not finite")
    if tables.ROUTES in table.column_names:
        refuse(~table[tables.ROUTES].to_numpy(), "has not the routes of each token through the experts of this model")
    refuse(table["foreign"].to_numpy(), f"has a token outside the {vocabulary} that the model knows")
