"""The mixture's study in the minutes that a GPU is there: ``python -m bench.claims.mixture.minutes SCALE --sets DIR
--encoded DIR --to DIR --minutes 9``.

Bases, gates, rates and arms, each in a process of its own, without vLLM: `torch_sampler.py` samples, with log-probs
of 16-bit weights, and float32 trains. What is there is left alone, so that a second call continues: an arm that time
ended keeps its state. Arms of a base that is there are trained while others are made:

    bases     a model for each seed; cooled ones after each of --checkpoints seconds
    trials    gates of each checkpoint, on fewer problems; the first that meets them all is the base, else the nearest
              one; pretraining ends with a checkpoint that meets them, or whose pass@1 is past the middle
    gates     the base's gates, all of them, and what it answers to the steps of the arms with the longest lag
    rates     --rates: the arms that choose rates, on the first base
    arms      in the order of `studies.urgency`; each asks its last weights for 256 answers to 24 held-out problems

``--encoded`` has examples.npz and tokenizer/, which `encode` writes from the sets, so that a GPU does not wait for it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims.mixture import studies
from bench.claims.mixture.encoded import EXAMPLES, Encoded
from bench.claims.mixture.place import FAILED, Place, machine_of, means_of, of_study, settings_of, sized, widths
from bench.claims.mixture.scales import SCALES
from bench.claims.mixture.worker import Worker, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.claims.mixture.pretrained import Pretraining

MIDDLE = 0.325
"""pass@1 in the middle of what the gate wants."""
TRIED = 16
"""Problems of each family and tier, of a trial; 64 answers to each as always."""


def main() -> None:
    """All of it, or one piece of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", choices=list(SCALES))
    for name in ("sets", "encoded", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--checkpoints", type=float, nargs="+", default=[60.0, 100.0, 140.0], help="seconds")
    parser.add_argument(
        "--begin-with", type=Path, help="DIR/seedN: weights of an earlier call, as `pieces unpack` leaves them"
    )
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--at-once", type=int, default=9, help="workers that train arms")
    parser.add_argument("--steps", type=int, help="of an arm; with it all else is small too, to try it")
    parser.add_argument("--job", nargs="+", help="a piece of work and what it is about")
    parser.add_argument("--until", type=float, help="of a piece: time.time() at which it ends")
    options = parser.parse_args()
    place = Place(options.scale, options.sets.resolve(), options.encoded.resolve(), options.to.resolve())
    place.to.mkdir(parents=True, exist_ok=True)
    until = options.until or time.time() + 60 * options.minutes
    if options.job:
        JOBS[options.job[0]](place, options, until, *options.job[1:])
    elif not (place.encoded / EXAMPLES).exists():
        encode(place)
    else:
        Study(place, options, until).run()


@dataclass
class Study:
    """Which pieces of work run when."""

    place: Place
    options: argparse.Namespace
    until: float

    def run(self) -> None:
        """Everything that is missing."""
        seeds, place = self.options.seeds, self.place
        # of a call that ended: what failed then is tried again
        shutil.rmtree(place.to / "claims", ignore_errors=True)
        for path in place.to.glob("mixture-*/*.failed"):
            path.unlink()
        jobs = [job for seed in seeds for job in self._of_base(seed)]
        self.at_once([*jobs, *(["worker", str(number)] for number in range(self.options.at_once))])
        if missing := [seed for seed in seeds if not place.model(seed).exists()]:
            sys.exit(f"no base of seed {', '.join(map(str, missing))}: see {place.to / 'logs'}")

    def _of_base(self, seed: int) -> list[list[str]]:
        """What is missing of a base; making one ends with the rest."""
        if not self.place.model(seed).exists():
            return [["bases", str(seed)]]
        own = self.place.base(seed)
        missing = {"rollouts": not (own / "base.measured.json").exists(), "gates": not list(own.glob("gates-*"))}
        return [[name, str(seed)] for name, is_missing in missing.items() if is_missing]

    def at_once(self, jobs: Sequence[Sequence[str]]) -> None:
        """Run processes at once; one that fails is said and left out."""
        logs = self.place.to / "logs"
        logs.mkdir(exist_ok=True)
        waiting, running = list(jobs), dict[str, subprocess.Popen[bytes]]()
        began, done = time.time(), 0
        shared = ["-m", "bench.claims.mixture.minutes", *self.place.arguments(), "--until", str(self.until)]
        shared += ["--checkpoints", *map(str, self.options.checkpoints), "--seeds", *map(str, self.options.seeds)]
        shared += [*small(self.options), *(["--rates"] if self.options.rates else [])]
        if self.options.begin_with:
            shared += ["--begin-with", str(self.options.begin_with.resolve())]
        while waiting or running:
            while waiting and time.time() < self.until:
                name = "-".join(job := waiting.pop(0))
                # a GPU's daemon for several processes lets others wait for those that make bases
                environment = os.environ | ({"CUDA_MPS_CLIENT_PRIORITY": "1"} if job[0] == "worker" else {})
                with (logs / f"{name}.log").open("ab") as log:
                    command = [sys.executable, *shared, "--job", *job]
                    running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                code, done = running.pop(name).returncode, done + 1
                how = "" if code == 0 else f" | exit status {code}, see logs/{name}.log"
                kind, _, seed = name.partition("-")
                if code and kind in ("bases", "rollouts"):
                    self.place.base(int(seed)).mkdir(exist_ok=True)
                    (self.place.base(int(seed)) / FAILED).touch()
                print(f"{done}/{len(jobs)} | {time.time() - began:.0f} s | {name}{how}", flush=True)
            if time.time() > self.until and not running:
                return
            time.sleep(0.1)


def small(options: argparse.Namespace) -> list[str]:
    """What a piece of work is told of a trial."""
    return ["--steps", str(options.steps)] if options.steps else []


def encode(place: Place) -> None:
    """Write the tokenizer and the ids of all solutions."""
    from bench.claims.mixture.pretrained import write_encoded

    vocabulary = settings_of(place.scale).pretrain.vocabulary
    write_encoded(place.sets / place.scale / "solutions.jsonl", vocabulary, place.encoded)


def _begun(place: Place, seed: int, begin_with: Path | None) -> Pretraining:
    """A model at its first step, with Liger's kernels on a GPU."""
    import torch
    from safetensors.torch import load_file
    from transformers import PreTrainedTokenizerFast

    from bench.claims.mixture.encoded import OnDevice
    from bench.claims.mixture.pretrained import mixed, started
    from oapl_core.pretraining.model import new_model
    from oapl_core.seeds import derive_seed

    settings = settings_of(place.scale)
    config: Any = settings.pretrain
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place.encoded / "tokenizer")
    with device:
        model = new_model(config, tokenizer, derive_seed(seed, "pretrain", "weights"))
    if begin_with and (known_weights := begin_with / f"seed{seed}" / "model.safetensors").exists():
        # moments and the place in the data are not carried: twice the weights, for what a warm-up makes good
        model.load_state_dict(load_file(known_weights), strict=False)
    if device.type == "cuda":
        # a package for GPUs alone
        liger: Any = importlib.import_module("liger_kernel.transformers")
        liger.apply_liger_kernel_to_qwen3(
            rope=True, rms_norm=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=False, model=model
        )
    known = Encoded.read(place.encoded / EXAMPLES)
    # a solution that the engine has no room for teaches nothing that is sampled later
    order, most = derive_seed(seed, "pretrain", "order"), settings.engine.max_model_len
    own = started(model, tokenizer, known, mixed(known, config, order, most), config)
    own.on_device, own.is_by_answer, own.bfloat16 = OnDevice(known, device), True, device.type == "cuda"
    model.train()
    print(f"{model.num_parameters():,} parameters, {len(known.lengths)} solutions on {device}", flush=True)
    return own


def bases(place: Place, options: argparse.Namespace, until: float, seed: str) -> None:
    """Pretrain one seed, measure each checkpoint's gates meanwhile, and choose; then ask the chosen one what arms need.

    Raises:
        SystemExit: time was up before a checkpoint was measured.
    """
    import torch

    from bench.claims.mixture.pretrained import checkpoints

    number, own = int(seed), _begun(place, int(seed), options.begin_with)
    left = place.to / "checkpoints" / f"seed{seed}"

    def found() -> dict[Path, Any]:
        return {path: json.loads(path.read_text()) for path in sorted(left.glob("*/trial/gates-*.json"))}

    def is_enough() -> bool:
        return time.time() > until or any(one["is_open"] or usual(one) >= MIDDLE for one in found().values())

    def piece(*job: str) -> subprocess.Popen[bytes]:
        command = ["-m", "bench.claims.mixture.minutes", *place.arguments(), "--until", str(until), *small(options)]
        return subprocess.Popen([sys.executable, *command, "--job", *job])

    made = checkpoints(own, left, options.checkpoints, is_enough)
    for one in [piece("trial", seed, folder.name) for folder in made]:
        one.wait()
    if not found():
        sys.exit(f"seed {seed}: no checkpoint was measured in time; give more --minutes, or earlier --checkpoints")
    best = nearest(found())
    draft = place.model(number).with_name(f".tmp-seed{seed}")
    shutil.copytree(best.parent.parent, draft, ignore=shutil.ignore_patterns("trial"))
    draft.rename(place.model(number))  # others wait for it
    place.base(number).mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for path, gates in found().items():
        folder = path.parent.parent
        facts = {"steps": int(folder.name), "is_base": path == best, "seed": number, "device": device}
        facts["pretraining"] = json.loads(folder.with_suffix(".json").read_text())
        (place.base(number) / f"trial-{folder.name}.json").write_text(json.dumps(gates | facts) + "\n")
    asked = [piece("rollouts", seed), piece("gates", seed)]
    codes = [one.wait() for one in asked]
    if any(codes):
        sys.exit(f"seed {seed}: the base could not be asked; see above")


def nearest(found: Mapping[Path, Mapping[str, Any]]) -> Path:
    """The first checkpoint that meets all gates, else the one whose pass@1 of usual problems is nearest to `MIDDLE`."""
    if open_ones := [path for path, gates in found.items() if gates["is_open"]]:
        return open_ones[0]
    return min(found, key=lambda path: abs(usual(found[path]) - MIDDLE))


def usual(gates: Mapping[str, Any]) -> float:
    """pass@1 of the mixture's usual problems."""
    rows = (r for r in gates["gates"] if (r["gate"], r["tier"], r["scope"]) == ("pass@1", "usual", "mixture"))
    return next(rows)["value"] or 0.0


def trial(place: Place, options: argparse.Namespace, until: float, seed: str, steps: str) -> None:
    """Measure the gates of a checkpoint on fewer problems."""
    folder = place.to / "checkpoints" / f"seed{seed}" / steps
    _gates(place, folder, folder / "trial", (1, 8) if options.steps else (TRIED, 64))


def gates(place: Place, options: argparse.Namespace, until: float, seed: str) -> None:
    """Measure a base's gates."""
    _gates(place, place.model(int(seed)), place.base(int(seed)), (1, 8) if options.steps else (64, 64))


def _gates(place: Place, model: Path, to: Path, size: tuple[int, int]) -> None:
    from bench.claims.mixture import gates as measuring

    with means_of(place, model) as means:
        most = settings_of(place.scale).sampling.max_tokens
        measuring.measured(place.scale, model, place.sets, to, size, means, most, 3 * size[0])


def rollouts(place: Place, options: argparse.Namespace, until: float, seed: str) -> None:
    """Sample what all arms of the longest lag train on, and measure the base as arms are."""
    from bench.claims.algorithm_1 import Lagged
    from bench.claims.mixture import arms

    arm = sized(next(iter(of_study(place, int(seed)).values())), options.steps)
    own = place.base(int(seed))
    with means_of(place, place.model(int(seed))) as means, tempfile.TemporaryDirectory() as scratch:
        one = Lagged(arm, machine_of(place, int(seed), means, own / "kept"), Path(scratch))
        one.evaluate()
        rows = one.sampled(one.machine.base, min(arm.interval, arm.steps))
        right = sum(row["correct"] for row in rows)
        print(f"{len(rows)} rollouts, {right} correct, {one.evaluations}", flush=True)
        (own / "rollouts.done").touch()  # arms need not wait for what follows
        arms.write(own / "base.measured.json", widths(place, one.machine, one.machine.base, options.steps))


def worker(place: Place, options: argparse.Namespace, until: float, number: str) -> None:
    """Train arms that no other worker has begun, until none is left or time is up."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(1)
    first = options.seeds[0]
    wait_for(place.model(first).exists, until)
    with means_of(place, place.model(first)) as means:
        own = Worker(place, options, until, number, means)
        if options.rates and not (place.to / "rates.json").exists():
            for name, one in studies.tuning(place.scale).items():
                own.train(first, name, one)
            own.choose_rates()
        own.study()


JOBS: Mapping[str, Callable[..., None]] = {
    "bases": bases,
    "trial": trial,
    "gates": gates,
    "rollouts": rollouts,
    "worker": worker,
}

if __name__ == "__main__":
    main()
