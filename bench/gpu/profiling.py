"""Where a step's time goes, by torch's profiler: milliseconds of each kind of kernel, and what the GPU waited.

Head and optimiser are what is launched between their begin and end; all else is told apart by its name
(``kernel_names.py``). Idle is the time of a step without the profiler, which slows the host, less the busy time.
"""

import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from bench.gpu.kernel_names import KINDS, kind
from bench.gpu.shapes import synchronize
from bench.gpu.step import RATE, covered, made_run, timed_step
from oapl_extras.prove.training import round_trainer

if TYPE_CHECKING:
    from oapl_core.training.steps import Trainer

STEPS, LARGEST = 3, 12
"""Steps that are profiled; kernels that the line names."""
_ON_GPU, _CALLS = {"kernel", "gpu_memcpy", "gpu_memset"}, {"cuda_runtime", "cuda_driver"}
_GPU_RANGE, _HOST_RANGE = "gpu_user_annotation", "user_annotation"


def profile(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """``options`` as of ``step``."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    run = made_run(options, folder)
    with round_trainer(run) as (trainer, _), tempfile.TemporaryDirectory() as name:
        warm = [timed_step(trainer) for _ in range(4)]
        wall_ms = 1e3 * min(one["wall"] for one in warm[2:])
        whole = list(range(len(trainer.examples.lengths)))
        with ranges(trainer), profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            began = time.perf_counter()
            for _ in range(STEPS):
                trainer.step(whole, trainer.examples.lengths, RATE)
            synchronize()
            profiled_ms = 1e3 * (time.perf_counter() - began) / STEPS
        path = Path(name) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    found = breakdown(events, STEPS, layers_in_float32=run.config.training.dtype == "float32")
    idle = round(max(0.0, wall_ms - found["busy_ms"]), 3)
    return {**found, "idle_ms": idle, "step_ms": round(wall_ms, 3), "profiled_step_ms": round(profiled_ms, 3)}


@contextmanager
def ranges(trainer: "Trainer") -> Iterator[None]:
    """Name what the output layer and the optimiser launch."""
    from torch.profiler import record_function

    from oapl_core.training.model import logprobs

    def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def within(*given: Any, **more: Any) -> Any:
            with record_function(name):
                return function(*given, **more)

        return within

    engine, head = trainer.engine._engine, trainer.engine.policy.model.get_output_embeddings()
    with ExitStack() as stack:
        for owner, name, label in (
            (head, "forward", "head"),
            (logprobs, "_gradients", "head"),
            (engine, "step", "optimiser"),
        ):
            stack.enter_context(mock.patch.object(owner, name, named(label, getattr(owner, name))))
        yield


def breakdown(events: Iterable[Mapping[str, Any]], steps: int, layers_in_float32: bool = False) -> dict[str, Any]:
    """Of a trace in Chrome's format: ms a step of each kind, launches and synchronisations a step, the largest kernels.

    Where no kernel is in it, as on a CPU, operators take their place, each without those that it called.
    """
    whole = [event for event in events if event.get("ph") == "X" and "dur" in event]
    on_gpu = [event for event in whole if event.get("cat") in _ON_GPU]
    # The host's range is over before the GPU comes to what was launched in it, which may be another range's time.
    ranges_of = _GPU_RANGE if on_gpu else _HOST_RANGE
    spans = [
        (e["ts"], e["ts"] + e["dur"], e["name"]) for e in whole if e.get("cat") == ranges_of and e["name"] in KINDS
    ]
    own = [(e, float(e["dur"])) for e in on_gpu] or list(_own_time([e for e in whole if e.get("cat") == "cpu_op"]))
    by_kind, by_name = defaultdict[str, float](float), defaultdict[str, float](float)
    places = _Places(spans)
    for event, duration in own:
        named = places.of(event["ts"] + event["dur"] / 2)
        by_kind[named or kind(event["name"], layers_in_float32)] += duration
        by_name[event["name"]] += duration
    calls = Counter(str(event["name"]) for event in whole if event.get("cat") in _CALLS)
    largest = sorted(by_name.items(), key=lambda one: -one[1])[:LARGEST]
    return {
        "busy_ms": round(covered([(e["ts"], e["ts"] + e["dur"]) for e, _ in own]) / 1e3 / steps, 3),
        "kinds_ms": {name: round(by_kind[name] / 1e3 / steps, 3) for name in KINDS},
        "kernels": round(len(on_gpu) / steps),
        "launches": round(sum(n for name, n in calls.items() if "Launch" in name) / steps),
        "synchronisations": round(sum(n for name, n in calls.items() if "Synchronize" in name) / steps, 1),
        "largest_ms": {name[:120]: round(us / 1e3 / steps, 3) for name, us in largest},
    }


class _Places:
    """Which of some spans, that do not overlap, holds a moment."""

    def __init__(self, spans: Iterable[tuple[float, float, str]]) -> None:
        self._spans = sorted(spans)
        self._starts = [start for start, _, _ in self._spans]

    def of(self, moment: float) -> str | None:
        from bisect import bisect_right

        at = bisect_right(self._starts, moment) - 1
        return self._spans[at][2] if at >= 0 and moment <= self._spans[at][1] else None


def _own_time(events: list[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Each operator with its time less that of what it called, thread by thread."""
    threads = defaultdict[Any, list[Mapping[str, Any]]](list)
    for event in events:
        threads[event.get("tid")].append(event)
    for own in threads.values():
        left = {id(event): float(event["dur"]) for event in own}
        stack: list[Mapping[str, Any]] = []
        for event in sorted(own, key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            if stack:
                left[id(stack[-1])] -= event["dur"]
            stack.append(event)
        yield from ((event, max(0.0, left[id(event)])) for event in own)
