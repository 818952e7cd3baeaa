"""What is trained on, in memory: reads 3_groups.parquet (tables.GROUPS), checks that it belongs here, makes tensors.

Token ids and log-probs stay in Arrow's own flat buffers; a micro-batch is cut out of them when its turn comes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor


class Ragged:
    """A list column as one flat array and the row limits in it."""

    def __init__(self, column: "pa.ChunkedArray") -> None:
        """No copy unless the column has several chunks."""
        import pyarrow as pa

        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # a table without rows
            array = pa.array([], column.type)
        self.flat: NDArray[Any] = array.values.to_numpy(zero_copy_only=False)
        self.limits: NDArray[np.int64] = array.offsets.to_numpy().astype("int64")

    @property
    def lengths(self) -> "NDArray[np.int64]":
        """Length of each row."""
        return self.limits[1:] - self.limits[:-1]

    def __getitem__(self, row: int) -> "NDArray[Any]":
        """A view of one row."""
        return self.flat[self.limits[row] : self.limits[row + 1]]


@dataclass(frozen=True)
class Batch:
    """A micro-batch: right-padded rows of prompt + response. Column t of [S, T - 1] tensors concerns token t + 1."""

    id_ST: "Tensor"
    prompt_length_S: "Tensor"
    length_S: "Tensor"
    behavior_ST: "Tensor"
    """Log-probs recorded when sampling, [S, T - 1], 0 outside the response."""
    row_S: "Tensor"
    """Row of the examples."""
    weight: float = 1.0
    """0 for the stand-in that a rank without work runs."""


@dataclass(frozen=True)
class Examples:
    """Every row of a groups file."""

    rollout_ids: "pa.ChunkedArray"
    prompt_ids: Ragged
    response_ids: Ragged
    behavior: Ragged
    reward_S: "NDArray[np.float32]"
    group_S: "NDArray[np.int32]"
    temperature: float

    @property
    def lengths(self) -> list[int]:
        """Tokens of prompt and response of each row."""
        lengths: list[int] = (self.prompt_ids.lengths + self.response_ids.lengths).tolist()
        return lengths

    def batch(self, rows: Sequence[int]) -> Batch:
        """Tensors of ``rows``; without rows a stand-in of one two-token sequence with weight 0."""
        import numpy as np
        import torch

        width = max((int(self.prompt_ids.lengths[i] + self.response_ids.lengths[i]) for i in rows), default=2)
        ids = np.zeros((max(1, len(rows)), width), dtype=np.int64)
        behavior = np.zeros((len(ids), width - 1), dtype=np.float32)
        for s, i in enumerate(rows):
            prompt, response = self.prompt_ids[i], self.response_ids[i]
            end = len(prompt) + len(response)
            ids[s, : len(prompt)], ids[s, len(prompt) : end] = prompt, response
            behavior[s, len(prompt) - 1 : end - 1] = self.behavior[i]
        prompt_lengths = torch.tensor([len(self.prompt_ids[i]) for i in rows] or [1])
        response_lengths = torch.tensor([len(self.response_ids[i]) for i in rows] or [1])
        return Batch(
            torch.from_numpy(ids), prompt_lengths, prompt_lengths + response_lengths, torch.from_numpy(behavior),
            torch.tensor(list(rows) or [0]), float(bool(rows)),
        )  # fmt: skip


def read_examples(path: Path, expected_hash: str, model_dir: Path) -> Examples:
    """Read and check a groups file.

    Args:
        path: 3_groups.parquet.
        expected_hash: identity of the round's policy, which must have sampled every row.
        model_dir: that policy's folder; its config says how long a sequence may be and which ids exist.

    Raises:
        DataError: no row, rows of another policy or of several temperatures, rows that are too long or damaged.
    """
    table = tables.read_table(path, tables.GROUPS)
    if not table.num_rows:
        raise DataError(f"{path}: has no group to train on; the ledger counts why every rollout was dropped")
    hashes = sorted(map(str, table["policy_hash"].unique().to_pylist()))
    if hashes != [expected_hash]:
        raise DataError(
            f"{path}: was sampled by policy {', '.join(hashes)}, but the round's policy is {expected_hash} "
            f"({model_dir}); delete the round's folder and run the same command again"
        )
    temperatures = table["temperature"].unique().to_pylist()
    if len(temperatures) != 1 or not temperatures[0] > 0:
        raise DataError(
            f"{path}: was sampled at temperatures {temperatures}, not at one above 0; sample the round again"
        )
    examples = Examples(
        rollout_ids=table["rollout_id"],
        prompt_ids=Ragged(table["prompt_ids"]),
        response_ids=Ragged(table["response_ids"]),
        behavior=Ragged(table["behavior_logprobs"]),
        reward_S=table["reward"].to_numpy().copy(),  # torch wants arrays that it may write to
        group_S=table["group"].to_numpy().copy(),
        temperature=float(temperatures[0]),
    )
    _check_rows(examples, path, model_dir)
    return examples


def _check_rows(examples: Examples, path: Path, model_dir: Path) -> None:
    import numpy as np

    longest, vocabulary = _limits(model_dir)
    responses, prompts = examples.response_ids, examples.prompt_ids

    def refuse(bad: Any, what: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            rows = f"rollout {examples.rollout_ids[row]} {what} ({int(bad.sum())} such rows)"
            raise DataError(f"{path}: {rows}; sample the round again")

    def anywhere(column: Ragged, bad: Any) -> Any:
        """Rows of ``column`` that hold a bad element."""
        found = np.zeros(len(column.lengths), dtype=bool)
        found[np.searchsorted(column.limits, np.flatnonzero(bad), side="right") - 1] = True
        return found

    refuse(responses.lengths != examples.behavior.lengths, "has not one log-prob for each response token")
    refuse((responses.lengths == 0) | (prompts.lengths == 0), "has an empty prompt or response")
    refuse(np.asarray(examples.lengths) > longest, f"is longer than the model's {longest} positions")
    refuse(anywhere(examples.behavior, ~np.isfinite(examples.behavior.flat)), "has a log-prob that is not finite")
    refuse(~np.isfinite(examples.reward_S), "has a reward that is not finite")
    for column in (prompts, responses):
        foreign = (column.flat < 0) | (column.flat >= vocabulary)
        refuse(anywhere(column, foreign), f"has a token outside the {vocabulary} that the model knows")


def _limits(model_dir: Path) -> tuple[float, float]:
    """Longest sequence and number of token ids that ``model_dir`` allows; infinite where its config does not say."""
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        return config.get("max_position_embeddings") or float("inf"), config.get("vocab_size") or float("inf")
    except FileNotFoundError:
        raise DataError(f"{model_dir}: is not a Hugging Face model folder (no config.json)") from None
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise DataError(f"{model_dir}: config.json is not readable ({error}); copy the model folder again") from None
