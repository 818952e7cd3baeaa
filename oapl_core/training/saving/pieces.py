"""Files of a training's state: weights and moments of the optimiser by name, in pieces that any number of ranks reads.

Each rank writes one file, ``rank_NNNNN.safetensors``, with what it steps. That is a piece of each flattened weight, in
float32, and the same piece of both moments. Tensors are called KIND/START/NAME. All files together hold
each number once, whatever ZeRO's stage divides them by. A rank that reads takes its own pieces from whichever files
have them. Nothing in a file can be run, unlike in DeepSpeed's pickles. Weights that are not trained are in no state:
they are those that the round starts from.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT = "weight"
"""Kind of the numbers that the optimiser steps; the others are called as it calls its moments."""
_FILES, _UPDATES = "rank_*.safetensors", "updates"
_Found = tuple[int, int, Any]
"""A stored piece: first number, the one after its last, and what reads numbers of it."""


@dataclass(frozen=True)
class WeightPiece:
    """Consecutive numbers of a flattened weight, and what the optimiser keeps beside each."""

    name: str
    start: int
    """Place of the first one in the whole weight."""
    values: "Mapping[str, Tensor]"
    """A [n] view of the memory that the optimiser steps, for each kind."""

    @property
    def end(self) -> int:
        """Place after the last one."""
        return self.start + len(self.values[WEIGHT])

    def share(self, rank: int, ranks: int) -> "WeightPiece":
        """Cut the ``rank``-th of so many nearly equal parts."""
        size = len(self.values[WEIGHT])
        first, end = size * rank // ranks, size * (rank + 1) // ranks
        return replace(self, start=self.start + first, values={k: v[first:end] for k, v in self.values.items()})


def write_pieces(path: Path, pieces: Sequence[WeightPiece], updates: int) -> str:
    """Write a rank's file in one pass, tensor by tensor, and wait until it is on the disk; returns its SHA-256.

    Args:
        path: of the file.
        pieces: what this rank alone writes.
        updates: steps that the optimiser has made.
    """
    tensors = {f"{kind}/{piece.start}/{piece.name}": value for piece in pieces for kind, value in piece.values.items()}
    header: dict[str, Any] = {"__metadata__": {_UPDATES: str(updates)}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * len(tensor)
        header[name] = {"dtype": "F32", "shape": [len(tensor)], "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # the format's own alignment
    head = len(head).to_bytes(8, "little") + head
    digest = hashlib.sha256(head)
    with path.open("wb") as file:
        file.write(head)
        for tensor in tensors.values():
            content = _bytes(tensor)
            digest.update(content)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _bytes(tensor: "Tensor") -> memoryview:
    # one at a time is copied from its device: a host has no room for every rank's whole state beside the training
    content: memoryview = tensor.detach().float().cpu().contiguous().numpy().data.cast("B")
    return content


def read_pieces(folder: Path, sizes: Mapping[str, int], pieces: Sequence[WeightPiece]) -> int:
    """Fill ``pieces`` from the files of ``folder``, whoever wrote them; returns the optimiser's steps.

    Args:
        folder: of a state.
        sizes: numbers of each trained weight of the model, whole.
        pieces: what this rank holds of them.

    Raises:
        DataError: the files are of another model, or do not hold each of its numbers.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob(_FILES))
    if not files:
        raise DataError(f"{folder}: is no state of this version (no {_FILES} in it)")
    try:
        with ExitStack() as stack:
            opened = [stack.enter_context(safe_open(path, "pt")) for path in files]
            stored: dict[tuple[str, str], list[_Found]] = {}
            # names and sizes alone; numbers are read when a piece wants them
            for file in opened:
                for key in file.keys():  # noqa: SIM118
                    kind, start, name = key.split("/", 2)
                    values = file.get_slice(key)
                    found = (int(start), int(start) + values.get_shape()[0], values)
                    stored.setdefault((name, kind), []).append(found)
            _refuse_another_model(
                folder, sizes, {name: found for (name, kind), found in stored.items() if kind == WEIGHT}
            )
            for piece in pieces:
                for kind, value in piece.values.items():
                    _fill(value, piece.start, stored.get((piece.name, kind), []), f"{folder}: {piece.name}")
            return int(opened[0].metadata()[_UPDATES])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: is no state ({str(error).splitlines()[0][:100]})") from None


def _refuse_another_model(folder: Path, sizes: Mapping[str, int], stored: Mapping[str, Sequence[_Found]]) -> None:
    held = {name: max(end for _, end, _ in found) for name, found in stored.items()}
    for name in [*sizes, *held]:
        if held.get(name) != sizes.get(name):
            here, there = (f"{n:,} numbers" if n else "none" for n in (sizes.get(name), held.get(name)))
            raise DataError(f"{folder}: is the state of another model: {name} has {there} in it and {here} in this")


def _fill(value: "Tensor", start: int, stored: Sequence[_Found], where: str) -> None:
    """Copy the numbers from ``start`` on out of the stored pieces that have them."""
    place, end = start, start + len(value)
    for first, after, numbers in sorted(stored, key=lambda found: found[:2]):
        until = min(after, end)
        if first <= place < until:
            value[place - start : until - start].copy_(numbers[place - first : until - first])
            place = until
    if place < end:
        raise DataError(f"{where}: has no number {place:,} of {end:,}; the file of a rank is missing")
