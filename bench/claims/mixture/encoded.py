"""Solutions as token ids in few arrays: read at once, put together to batches on a GPU. Writes what it is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from oapl_core.pretraining.model import Example

EXAMPLES = "examples.npz"
MOST_TOKENS = 65_536
"""Of a forward pass on a GPU, padding among them: a batch of long ones is computed in parts."""
BLOCK, PASS = 32, 24_576
"""Rows that stay together, and tokens that take a GPU as long as one more pass takes its host: an estimate."""


@dataclass(frozen=True)
class Encoded:
    """Examples as arrays, which are read at once: a list of lists of some tens of millions of ids takes minutes."""

    flat: Any
    """Ids of all, int16."""
    lengths: Any
    prompts: Any
    """Tokens of each example, and of its prompt."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[list[int], list[int]]]) -> Encoded:
        """Arrays of prompts and answers."""
        import numpy as np

        flat = np.fromiter((i for pair in pairs for ids in pair for i in ids), dtype=np.int16)
        lengths = np.array([len(prompt) + len(answer) for prompt, answer in pairs])
        return cls(flat, lengths, np.array([len(prompt) for prompt, _ in pairs]))

    @classmethod
    def read(cls, path: Path) -> Encoded:
        """What `write` wrote."""
        import numpy as np

        with np.load(path) as known:
            return cls(known["flat"], known["lengths"].astype(np.int64), known["prompts"].astype(np.int64))

    def write(self, path: Path) -> None:
        """Write them, complete or not at all."""
        import numpy as np

        draft = path.with_name(f".tmp-{path.name}")
        small = {"lengths": self.lengths.astype(np.int16), "prompts": self.prompts.astype(np.int16)}
        np.savez(draft, flat=self.flat, **small)
        draft.rename(path)

    @property
    def begin(self) -> Any:
        """First place of each example."""
        return self.lengths.cumsum() - self.lengths

    def examples(self) -> list[Example]:
        """As the stage has them."""
        from oapl_core.pretraining.model import Example

        flat = self.flat.tolist()
        of = zip(self.begin.tolist(), self.prompts.tolist(), self.lengths.tolist(), strict=True)
        return [Example(flat[a : a + p], flat[a + p : a + n]) for a, p, n in of]


class OnDevice:
    """All examples on a GPU, so that a batch is put together there; its loss is that of `batch_loss` to rounding."""

    def __init__(self, examples: Encoded, device: torch.device) -> None:
        import torch

        self._flat = torch.from_numpy(examples.flat).to(device)
        self._begin, self._prompt, self._length = (
            torch.from_numpy(x).to(device) for x in (examples.begin, examples.prompts, examples.lengths)
        )
        self._lengths, self._prompts = examples.lengths, examples.prompts

    def backward(self, model: Any, batch: Sequence[int], is_by_answer: bool = False) -> torch.Tensor:
        """Add the gradient of the answers' mean negative log-probability; returns it, nats a token.

        The mean is over all tokens, or ``is_by_answer`` over each answer's mean: a long one counts like a short one.
        """
        import torch

        rows = sorted(batch, key=lambda row: int(self._lengths[row]))
        answers = self._lengths[rows] - self._prompts[rows]
        weights = 1 / (answers * len(rows)) if is_by_answer else answers * 0 + 1 / answers.sum()
        # each tensor is told its place: with a default device every call in the model would go through Python
        device = self._flat.device
        total = torch.zeros((), device=device)
        for part in passes(self._lengths[rows].tolist()):
            weight_S = torch.tensor(weights[part], dtype=torch.float32, device=device)
            loss = self._loss(model, rows[part], weight_S)
            loss.backward()
            total += loss.detach()
        return total

    def _loss(self, model: Any, batch: list[int], weight_S: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.nn.functional as F

        width = -(-int(self._lengths[batch].max()) // 16) * 16  # few widths: memory is used again
        rows = torch.tensor(batch, device=self._flat.device)
        place = torch.arange(width, device=self._flat.device)
        at = (self._begin[rows, None] + place).clamp(max=len(self._flat) - 1)
        is_own = place < self._length[rows, None]
        ids = self._flat[at].long().where(is_own, 0)
        target_SL = ids.where(is_own & (place >= self._prompt[rows, None]), -100)[:, 1:]
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        # at every position, prompts too: to choose among them the host would have to wait
        logits = model.lm_head(hidden[:, :-1])
        each_N = F.cross_entropy(logits.flatten(0, 1).float(), target_SL.flatten(), reduction="none")
        return (each_N.view_as(target_SL).sum(1) * weight_S).sum()


def passes(lengths: Sequence[int]) -> list[slice]:
    """Parts of rows in order of their lengths, each for one forward pass: the cheapest of all ways, in blocks of rows.

    A pass costs its tokens, padding among them, and as much as `PASS` tokens more for what a GPU waits for its host.
    """
    edges = [*range(0, len(lengths), BLOCK), len(lengths)]
    best: list[tuple[int, list[slice]]] = [(0, [])]
    for end in edges[1:]:
        ways = []
        for first, (cost, parts) in zip(edges, best, strict=False):
            tokens = (end - first) * lengths[end - 1]
            if tokens <= MOST_TOKENS or end - first <= BLOCK:
                ways.append((cost + tokens + PASS, [*parts, slice(first, end)]))
        best.append(min(ways, key=lambda way: way[0]))
    return best[-1][1]
