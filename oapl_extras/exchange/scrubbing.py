"""Nothing leaves that should not: local paths are taken out of what we wrote, a secret anywhere stops the push."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|CREDENTIAL|PRIVATE_KEY", re.IGNORECASE)
_SHORTEST = 8
"""Characters; a shorter value of such a variable (`true`, `1`) would be found in any text."""
_SHAPES = (
    r"hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{60,}|xox[abprs]-[A-Za-z0-9-]{20,}"
    r"|AKIA[0-9A-Z]{16}|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"
)
"""How tokens of Hugging Face, OpenAI and its like, GitHub, Slack and AWS, and private keys, look."""
_ABSOLUTE = re.compile(r"(?<![\w./:])/(?:[\w.@+~-]+/)+[\w.@+~-]*")


def without_paths(value: Any, root: Path) -> Any:
    """Make paths into ``root`` relative to it in JSON content; any other absolute path is cut to its name."""
    if isinstance(value, Mapping):
        return {_pathless(str(key), root): without_paths(inner, root) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(inner, root) for inner in value]
    return _pathless(value, root) if isinstance(value, str) else value


def _pathless(text: str, root: Path) -> str:
    # a name alone still says what a setting was about; where it lay is nobody's business
    def shortened(match: re.Match[str]) -> str:
        path = Path(match[0])
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name

    return _ABSOLUTE.sub(shortened, text)


def secrets(environment: Mapping[str, str] = os.environ) -> re.Pattern[str]:
    """Finds what looks like a token, and the values of this environment's variables that are named like one."""
    values = (value for name, value in environment.items() if _SECRET_NAME.search(name) and len(value) >= _SHORTEST)
    return re.compile("|".join([_SHAPES, *(re.escape(value) for value in values)]))


def refuse_secrets(name: str, content: Path | bytes, wanted: re.Pattern[str]) -> None:
    """Do nothing with a file that holds none. Weights are not read: no text of ours gets into them.

    Raises:
        DataError: names the file and where in it, never the secret.
    """
    suffix = Path(name).suffix
    if suffix == ".safetensors":
        return
    # compressed: a search of its bytes would find nothing
    if suffix == ".parquet" and isinstance(content, Path):
        for where, texts in _texts_of(content):
            if any(wanted.search(text) for text in texts):
                raise _found(name, where)
        return
    text = (content.read_bytes() if isinstance(content, Path) else content).decode("utf-8", "replace")
    if match := wanted.search(text):
        raise _found(name, f"line {text.count(chr(10), 0, match.start()) + 1}")


def _found(name: str, where: str) -> DataError:
    return DataError(
        f"{name}: {where} holds what looks like a secret, or the value of a variable of this environment that is named "
        "like one; nothing was pushed: take it out of what was sampled or set, or unset the variable if it is none"
    )


def _texts_of(path: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the texts of each column of each row group, however deep they lie; one row group is in memory at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        # pandas and others leave notes there
        yield "its metadata", [json.dumps({str(k): str(v) for k, v in (file.schema_arrow.metadata or {}).items()})]
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number)
            for column in rows.column_names:
                yield f"column {column}", (text for chunk in rows[column].chunks for text in _strings(chunk))


def _strings(array: "pa.Array") -> Iterator[str]:
    import pyarrow as pa

    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield from (text for text in array.to_pylist() if text)
    # the authors' schema keeps prompts in lists of structs
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _strings(array.flatten())
    elif pa.types.is_struct(kind):
        for inner in array.flatten():
            yield from _strings(inner)
