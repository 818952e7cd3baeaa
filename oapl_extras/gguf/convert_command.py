"""`oapl convert`: a GGUF file becomes a model folder that can be sampled from and trained."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.model_files.model_folder import policy_hash
from oapl_extras.gguf.gguf import convert as convert_file

_DTYPES = ("bfloat16", "float32")


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="Quantised model in one file.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Model folder to write.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
) -> None:
    """Write a quantised model as a Hugging Face folder; its licence stays in force."""
    if dtype not in _DTYPES:
        raise ConfigError(f"--dtype {dtype!r}: choose one of {', '.join(_DTYPES)}")
    convert_file(file, to, dtype)
    tell(f"{to}: policy {policy_hash(to)}; give it to `model`")
