"""Arguments that vLLM is started with, and one line why it did not start. Reads its output; imports no vLLM."""

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from pydantic import ValidationError

from oapl_core.errors import ConfigError, DataError, OaplError, StageFailed
from oapl_core.rollouts.kept_logprobs import SCHEDULER
from oapl_core.rollouts.reloading import EXTENSION
from oapl_core.settings.engine_options import SAME_NAMES
from oapl_core.settings.experiment import EngineConfig

_CPU_BLOCK_TOKENS = 32
_CPU_BATCH_TOKENS = 8192
_CAPTURED = 512
"""Requests in a step for which vLLM captures graphs by itself."""
_STDERR = 2
_RAISED = re.compile(r"(?:^|[\s.])([A-Z]\w*(?:Error|Exception|Interrupt)): (.+)$")
_LOADING, _WHOLE = "load weights", "init engine"
_PHASES = {
    _LOADING: re.compile(r"(?:Model loading took .* and|Loading weights took) ([\d.]+) seconds"),
    "compile": re.compile(r"torch\.compile(?: and .* together)? took ([\d.]+) s in total"),
    "profile": re.compile(r"Initial profiling/warmup run took ([\d.]+) s"),
    "capture graphs": re.compile(r"Graph capturing finished in ([\d.]+) secs"),
    _WHOLE: re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
}
"""Seconds in vLLM's lines of level INFO."""
_SAYS_NOTHING = ("initialization failed", "root cause", "Engine core", "cancelled")
_MAY_PASS = ("RuntimeError", "MemoryError", "OutOfMemoryError", "AcceleratorError")
"""Errors of devices, and of other processes on them, after which the next start may succeed."""


def engine_arguments(
    model_dir: Path,
    config: EngineConfig,
    on_cpu: bool,
    logprobs_mode: str,
    known: Collection[str],
    more: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return vLLM's engine arguments, of which it knows ``known``; ``more`` are what reporters of columns ask for.

    Raises:
        ConfigError: `engine.options` has a key that vLLM does not know, or what a CPU cannot do.
    """
    _check_options(config.options, on_cpu, known)
    settings: dict[str, Any] = {
        "model": str(model_dir),
        **{name: getattr(config, name) for name in SAME_NAMES},
        "generation_config": "vllm",  # not the model's own sampling defaults
        "logprobs_mode": logprobs_mode,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "worker_extension_cls": EXTENSION,
        "scheduler_cls": SCHEDULER,
        "seed": 0,  # never drawn from: each request has its own
    }
    if on_cpu:
        _prepare_cpu()
        settings |= {
            "dtype": "float32" if config.dtype == "auto" else config.dtype,
            "enforce_eager": True,
            "block_size": _CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
            # A seeded request whose prompt is prefilled in two steps ends vLLM ("CPU Generator does not use offset").
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(config.max_model_len, _CPU_BATCH_TOKENS),
        }
    elif config.max_num_seqs and config.max_num_seqs > _CAPTURED and not config.enforce_eager:
        # else steps of more requests are launched kernel by kernel; sizes in between are multiples of 16
        settings["compilation_config"] = {"max_cudagraph_capture_size": -(-config.max_num_seqs // 16) * 16}
    for asked in more:
        settings |= asked
    return settings | config.options


def _check_options(options: dict[str, Any], on_cpu: bool, known: Collection[str]) -> None:
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            raise ConfigError(
                f"engine.options.{name}: this vLLM knows no such option" + (f"; `{near[0]}` is one" if near else "")
            )
    if on_cpu and options.get("enable_chunked_prefill"):
        raise ConfigError(
            "engine.options.enable_chunked_prefill: on CPU vLLM cannot prefill the prompt of a request with a seed in "
            "two steps, and every request has one; leave it out"
        )


def _prepare_cpu() -> None:
    """Keep the engine in this process (another would start in 54 s, not 4), without a C++ compiler for functions."""
    import torch

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    torch._dynamo.config.disable = True


def goes_to_a_file() -> bool:
    """Tell whether standard error is a file, as that of a stage is: its log."""
    return S_ISREG(os.fstat(_STDERR).st_mode)


def printed_so_far() -> int:
    """Return the length of the file that standard error goes to; 0 where it is no file."""
    return os.fstat(_STDERR).st_size if goes_to_a_file() else 0


def _printed_since(offset: int) -> list[str]:
    """Return lines in the file since ``offset``; none where standard error is no file."""
    if not goes_to_a_file():
        return []
    with Path(f"/proc/self/fd/{_STDERR}").open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace").splitlines()


def phases(lines: Iterable[str]) -> dict[str, float]:
    """Read seconds of each phase of a start, by vLLM's own lines; of several workers the slowest. Empty without lines.

    What vLLM calls `init engine` holds all but loading; `cache` is what its other lines leave of that.
    """
    found: dict[str, float] = {}
    for line in lines:
        for phase, pattern in _PHASES.items():
            if match := pattern.search(line):
                found[phase] = max(found.get(phase, 0.0), float(match[1]))
    whole = found.pop(_WHOLE, 0.0)
    rest = whole - sum(seconds for phase, seconds in found.items() if phase != _LOADING)
    return found | ({"cache": round(max(0.0, rest), 3)} if whole else {})


def start_seconds(imported_s: float, engine_s: float, offset: int) -> dict[str, float]:
    """Return the seconds of a start: the import, phases that vLLM printed since ``offset``, the rest of the engine."""
    told = phases(_printed_since(offset))
    rest = max(0.0, engine_s - sum(told.values()))
    return {"import": round(imported_s, 3), **told, "engine": round(rest, 3)}


def start_failure(model_dir: Path, error: BaseException, offset: int, link: Path | None = None) -> OaplError:
    """Return the error to raise: ``DataError``, or ``StageFailed``, which is tried again, for an error that may pass.

    A person knows ``model_dir``, the engine the ``link`` that it was started through.
    """
    said = reason(error, offset)
    if link:
        said = said.replace(str(link), str(model_dir))
    may_pass = said.startswith(tuple(f"{name}: " for name in _MAY_PASS)) or _says_nothing(said)
    return (StageFailed if may_pass else DataError)(f"{model_dir}: vLLM cannot run this model: {said}")


def _says_nothing(said: str) -> bool:
    return any(phrase in said for phrase in _SAYS_NOTHING)


def reason(error: BaseException, offset: int) -> str:
    """Say why the engine did not start, in one line; ``offset``: what ``printed_so_far`` said before.

    An engine core in a process of its own hands over that it failed, and prints why.
    """
    if isinstance(error, ValidationError):  # of vLLM's own settings: the rest of its text is a dump of all of them
        first = error.errors()[0]
        return one_line(": ".join([*map(str, first["loc"]), first["msg"]]))
    said = one_line(str(error))
    if _says_nothing(said):
        return _printed_reason(offset) or said
    return said if isinstance(error, ValueError | OSError | NotImplementedError) else f"{_name(error)}: {said}"


def _printed_reason(offset: int) -> str | None:
    """Return the last exception printed since ``offset`` that says more than that something failed."""
    found = [match for match in map(_RAISED.search, _printed_since(offset)) if match]
    telling = [m for m in found if not _says_nothing(m[2])]
    return one_line(f"{telling[-1][1]}: {telling[-1][2]}") if telling else None


def _name(error: BaseException) -> str:
    return type(error).__name__


def one_line(text: str) -> str:
    """Return the text without line breaks, cut where nobody reads on."""
    return " ".join(text.split())[:400] or "it gave no reason"
