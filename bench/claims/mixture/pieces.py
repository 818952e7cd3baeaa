"""A model folder in files that travel: ``python -m bench.claims.mixture.pieces pack FOLDER --to DIR``, ``unpack DIR``.

``pack`` writes DIR/NAME.NNN, each at most 15 MiB, of the folder's weights in 16 bits and its other files. ``unpack``
makes DIR/NAME again, in 32 bits. Nothing is lost of weights that were rounded to bfloat16 before, as
``pretrained --bfloat16`` leaves them; of others ``pack`` refuses. DIR/NAME.json has every piece's hash.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

LARGEST = 15 * 2**20
"""Bytes of a piece."""
WEIGHTS = "model.safetensors"


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--to", type=Path, required=True)
    unpacking = verbs.add_parser("unpack")
    unpacking.add_argument("pieces", type=Path)
    options = parser.parse_args()
    if options.verb == "pack":
        pack(options.folder, options.to)
    else:
        for index in sorted(options.pieces.glob("*.json")):
            unpack(index)


def pack(folder: Path, to: Path) -> None:
    """Write the pieces, then their list.

    Raises:
        SystemExit: weights would change.
    """
    import torch
    from safetensors.torch import load_file, save

    to.mkdir(parents=True, exist_ok=True)
    weights = load_file(folder / WEIGHTS)
    halved = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    if changed := [name for name, weight in weights.items() if not torch.equal(halved[name].float(), weight.float())]:
        sys.exit(f"{folder}: {changed[0]} has more than 16 bits; make the model with `pretrained --bfloat16`")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            content = save(halved, metadata={"format": "pt"}) if path.name == WEIGHTS else path.read_bytes()
            entry = tarfile.TarInfo(path.name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    data = whole.getvalue()
    hashes = {}
    for number, first in enumerate(range(0, len(data), LARGEST)):
        piece = data[first : first + LARGEST]
        (to / f"{folder.name}.{number:03d}").write_bytes(piece)
        hashes[f"{folder.name}.{number:03d}"] = hashlib.sha256(piece).hexdigest()
    (to / f"{folder.name}.json").write_text(json.dumps(hashes, indent=1) + "\n")


def unpack(index: Path) -> Path:
    """The folder whose pieces the list names, complete or not at all.

    Raises:
        SystemExit: a piece is missing or damaged.
    """
    import torch
    from safetensors.torch import load_file, save_file

    folder, data = index.with_suffix(""), b""
    for name, known in json.loads(index.read_text()).items():
        path = index.with_name(name)
        piece = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(piece).hexdigest() != known:
            sys.exit(f"{path}: is missing or damaged; bring it again")
        data += piece
    draft = index.with_name(f".tmp-{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(draft, filter="data")
    weights = {name: weight.to(torch.float32) for name, weight in load_file(draft / WEIGHTS).items()}
    save_file(weights, draft / WEIGHTS, metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    return draft.rename(folder)


if __name__ == "__main__":
    main()
