"""A Hugging Face model folder as seen from outside: is it whole, is it what was recorded, are two of one architecture.

Reads config.json, the headers of ``*.safetensors`` (names and shapes) and the run's ledger; loads no weights.
"""

import json
import struct
from pathlib import Path
from typing import Any

from oapl_core.errors import DataError
from oapl_core.run_folder.run import Run, policy_hash

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_model_folder(model_dir: Path) -> None:
    """Notice what is missing or cut short before an engine spends half a minute on it.

    Raises:
        DataError: one line that names the file.
    """
    model_config(model_dir)
    tensors(model_dir)
    if not any((model_dir / name).is_file() for name in _TOKENIZERS):
        raise DataError(f"{model_dir}: has no tokenizer (tokenizer.json); copy the whole model folder")


def model_config(model_dir: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        DataError: it is missing or not JSON.
    """
    path = model_dir / "config.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = "is not a Hugging Face model folder (no config.json); give one to `model`"
        raise DataError(f"{model_dir}: {what}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not JSON ({error}); copy the model folder again") from None
    return content


def tensors(model_dir: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the folder's ``*.safetensors``; empty if the weights are in another format.

    Raises:
        DataError: a file is cut short or has a broken header.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        shapes.update(_header(path))
    return shapes


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError("the header is cut off")
            entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        if 8 + length + end != size:
            raise ValueError(f"{8 + length + end} bytes expected, {size} found")
        return {name: tuple(entry["shape"]) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        what = f"is not a whole safetensors file ({error}); copy or make the model folder again"
        raise DataError(f"{path}: {what}") from None


def check_same_architecture(first: Path, other: Path) -> None:
    """Make sure that loading ``other`` over ``first`` replaces every weight and leaves the tokenizer right.

    An engine silently keeps the old values of weights that a new checkpoint lacks.

    Raises:
        DataError: they differ; names the first difference.
    """
    have, new = tensors(first), tensors(other)
    wrong = sorted(name for name in have if new.get(name) != have[name])
    if wrong or not have:
        what = f"`{wrong[0]}` is {new.get(wrong[0], 'missing')}, not {have[wrong[0]]}" if wrong else "no safetensors"
        raise DataError(f"{other}: cannot take the place of {first} in a running engine: {what}")
    for name in _TOKENIZERS:
        if _content(first / name) != _content(other / name):
            raise DataError(f"{other}: has another {name} than {first}; the prompts' token ids would change meaning")


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def end_token_ids(model_dir: Path) -> list[int]:
    """Every token that ends a response: those of config.json and generation_config.json.

    The rest of generation_config.json (temperature, top-k, penalties) is advice to chat programs and is not used.
    """
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = model_dir / name
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        found.update([value] if isinstance(value, int) else value or [])
    return sorted(found)


def identity(run: Run, model_dir: Path) -> str:
    """The checkpoint's policy hash, computed from its files and compared with what this run recorded for it.

    Raises:
        DataError: the weights or the tokenizer changed since; names both hashes.
    """
    found = policy_hash(model_dir)
    recorded = _recorded(run, model_dir)
    if recorded not in (None, found):
        raise DataError(
            f"{model_dir}: has policy hash {found}, but this run recorded {recorded} for it; "
            "put the original folder back, or start a run under another name=..."
        )
    return found


def _recorded(run: Run, model_dir: Path) -> str | None:
    """What pretraining, training or (for a base model from elsewhere) the first rollouts recorded."""
    artifacts = run.ledger.artifacts()
    entry = artifacts.get(run.name(model_dir))
    if entry is not None:
        return entry.details.get("policy_hash")
    if model_dir != run.base_model():
        return None
    record = run.root / "base_model.json"
    if run.config.model is None and record.is_file():
        return str(json.loads(record.read_text())["policy_hash"])
    first = run.name(run.rollouts(0))
    return next((e.details.get("policy_hash") for name, e in artifacts.items() if name.startswith(f"{first}/")), None)
