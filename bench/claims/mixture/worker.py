"""A process of `minutes.py` that trains arms which no other process has begun."""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.claims.mixture import studies
from bench.claims.mixture.place import FAILED, Place, machine_of, of_study, sized, widths

if TYPE_CHECKING:
    from pathlib import Path

    from bench.claims.algorithm_1 import Arm
    from bench.claims.machine import Machine

CHUNK = 50
"""Steps of an arm that are sampled together and saved: with fewer a GPU waits for the longest answers more often."""


@dataclass
class Worker:
    """A process's sampler and verifier, and what it knows of each base."""

    place: Place
    options: argparse.Namespace
    until: float
    number: str
    means: tuple[Any, Any]
    machines: dict[int, Machine] = field(default_factory=dict)

    def study(self) -> None:
        """Train arms of the bases that are there, the most urgent first, until none is left or time is up.

        A base that could not be made, or asked, is waited for no longer.
        """
        while time.time() < self.until:
            ready = [seed for seed in self.options.seeds if (self.place.base(seed) / "rollouts.done").exists()]
            every = [(seed, name, arm) for seed in ready for name, arm in of_study(self.place, seed).items()]
            # a base that became ready has arms that come before those of the others that are left
            if any(self.train(*one) for one in sorted(every, key=lambda one: studies.urgency(one[2]))):
                continue
            gone = [seed for seed in self.options.seeds if (self.place.base(seed) / FAILED).exists()]
            if len({*ready, *gone}) == len(self.options.seeds):
                return
            time.sleep(0.5)

    def train(self, seed: int, name: str, arm: Arm) -> bool:
        """Train an arm that nobody has begun, and measure its last weights unless it chooses a rate.

        Returns whether it was begun.
        """
        import torch

        from bench.claims.mixture import arms

        own = self.place.base(seed)
        if time.time() > self.until or is_there(own, name, arm) or not self._is_first(seed, name):
            return False
        machine, before = self.machine(seed), time.monotonic() + self.until - time.time()
        try:
            is_done = arms.train(machine, {name: sized(arm, self.options.steps)}, own, before, CHUNK)
            if is_done and not is_there(own, name, arm):
                found = widths(self.place, machine, own / "models" / name, self.options.steps)
                arms.write(own / f"{name}.measured.json", found)
                shutil.rmtree(own / "models" / name)
        except Exception:  # noqa: BLE001  # whatever it is, the other arms are worth the minutes
            traceback.print_exc()
            (own / f"{name}.failed").touch()
        gc.collect()
        torch.cuda.empty_cache()
        return True

    def machine(self, seed: int) -> Machine:
        """Problems and prompts of a base; what it answered is copied, as every process adds to it."""
        if seed not in self.machines:
            own = self.place.base(seed)
            if not (own / "rollouts.done").exists():
                return machine_of(self.place, seed, self.means, own / f"kept-{self.number}-early")
            kept = own / f"kept-{self.number}"
            if not kept.exists():
                shutil.copytree(own / "kept", kept)
            self.machines[seed] = machine_of(self.place, seed, self.means, kept)
        return self.machines[seed]

    def choose_rates(self) -> None:
        """Write the rates once every arm that chooses them is there.

        Raises:
            SystemExit: a method has none, as all of its arms failed.
        """
        own, path = self.place.base(self.options.seeds[0]), self.place.to / "rates.json"
        files = {name: own / f"{name}.json" for name in studies.tuning(self.place.scale)}

        def all_ended() -> bool:
            return all(file.exists() or file.with_suffix(".failed").exists() for file in files.values())

        wait_for(all_ended, self.until)
        found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        found = {name: one for name, one in found.items() if not one.get("failure")}
        there = {name.partition("-")[0] for name in found}
        if all_ended() and (missing := [method for method in studies.METHODS if method not in there]):
            sys.exit(f"no rate of {', '.join(missing)} could be tried: see {self.place.to / 'logs'}")
        if all_ended() and self._is_first(0, "rates"):
            right = dict.fromkeys(files, -1.0)
            right |= {name: one["evaluations"][-1]["right_share"] for name, one in found.items()}
            draft = path.with_name(".tmp-rates.json")
            draft.write_text(json.dumps(studies.chosen(right), indent=1) + "\n")
            draft.rename(path)
        wait_for(path.exists, self.until)

    def _is_first(self, seed: int, name: str) -> bool:
        claims = self.place.to / "claims"
        claims.mkdir(exist_ok=True)
        try:
            (claims / f"{seed}-{name}").mkdir()
        except FileExistsError:
            return False
        return True


def is_there(own: Path, name: str, arm: Arm) -> bool:
    """Whether all of an arm is there: what it was asked on the way, and of one that chooses no rate its widths."""
    path = own / f"{name}.json"
    if not path.exists():
        return False
    is_whole = arm.measured_on != "heldout" or (own / f"{name}.measured.json").exists()
    return is_whole or json.loads(path.read_text()).get("failure") is not None


def wait_for(is_there: Callable[[], bool], until: float) -> None:
    """Wait for what another process writes, while there is time."""
    while not is_there() and time.time() < until:
        time.sleep(0.2)
