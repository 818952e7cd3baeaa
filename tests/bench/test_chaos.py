"""Faults in whole runs: real trials with `-m slow`, hundreds by `python -m bench.chaos`; here, what makes trials."""

import errno
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from bench.chaos.compare import differences
from bench.chaos.page import page, tables
from bench.chaos.trial import FAULTS, Trial
from bench.chaos.world import VARIANTS, Control, World, built_faults
from oapl_core.run_folder.run import Run
from tests.synthetic_run import Sizes, write_synthetic_run

SIZES = Sizes(train=6, validation=3, heldout=3, group=2, samples=2, epochs=(1, 2))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the undisturbed run and what is hurt."""
    folder = tmp_path_factory.mktemp("chaos")
    built_faults(folder)
    return folder


def trial(place: Path, number: int, *only: str) -> Trial:
    return Trial(number, partial(World, place, faults=place / "faults.so"), only)


# An interrupted redo, a file of the run and a line of its ledger: one of each kind that once lost work.
@pytest.mark.slow
@pytest.mark.parametrize(("number", "fault"), [(1, "power cut"), (2, "file"), (3, "ledger")])
def test_a_run_that_was_hurt_ends_as_one_that_was_not(place: Path, number: int, fault: str) -> None:
    outcome = trial(place, number, "plain", fault).carry_out()
    assert not outcome.wrong, outcome.line


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100, 130))
def test_thirty_faults_of_any_kind(place: Path, number: int) -> None:
    outcome = trial(place, number).carry_out()
    assert not outcome.wrong, outcome.line


def test_a_number_always_gives_the_same_trial(tmp_path: Path) -> None:
    drawn = [[(one.fault, one.world.variant) for one in (trial(tmp_path, n) for n in range(300))] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert {fault for fault, _ in drawn[0]} == FAULTS.keys()
    assert {variant for _, variant in drawn[0]} == VARIANTS.keys()
    assert all(variant in (FAULTS[fault].variants or VARIANTS) for fault, variant in drawn[0])


def test_the_comparison_sees_what_is_lost_and_what_is_different(tmp_path: Path) -> None:
    whole, hurt = (write_synthetic_run(tmp_path / name, SIZES) for name in ("whole", "hurt"))
    same = Run(whole.root, hurt.config, hurt.started_in)
    assert differences(same, hurt) == ["unfinished: report"], "which such a run does not have"
    with hurt.writing(hurt.checkpoint(0, 1), {}, {}) as draft:
        draft.path.mkdir()
        (draft.path / "model.safetensors").write_text("other weights")
    (hurt.rollouts(0) / ".tmp-part-00009.parquet").touch()
    part = next(hurt.verdicts(1).glob("*.parquet"))
    part.unlink()
    found = "\n".join(differences(same, hurt))
    assert "different: round_00/4_checkpoint/oapl/epoch_01: other files" in found
    assert f"gone: {hurt.name(part)}" in found
    assert "left over: round_00/1_rollouts/.tmp-part-00009.parquet" in found
    assert "unfinished: round 1: verification" in found


def test_calls_fail_and_clocks_jump_while_the_control_file_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, "plain", built_faults(tmp_path))
    world.folder.mkdir(exist_ok=True)
    below = tmp_path / "below"
    below.mkdir()
    program = (
        "import sys, time\nprint(time.time())\n"
        "for name in sys.argv[1:]:\n"
        "    try: open(name, 'w').close()\n"
        "    except OSError as error: print(error.errno)\n"
        "    else: print('made')\n"
    )
    environment = world.environment(below)
    command = [sys.executable, "-c", program, str(below / "a"), str(tmp_path / "b")]
    ran = partial(subprocess.run, command, env=environment, capture_output=True, text=True, check=True)
    first, *calm = ran().stdout.split()
    Control(world.folder / "control").set(errno.ENOSPC, 100, ahead_s=86_400)
    later, *hurt = ran().stdout.split()
    assert (calm, hurt) == (["made", "made"], [str(errno.ENOSPC), "made"])
    assert 86_000 < float(later) - float(first) < 87_000


def test_the_page_counts_trials_and_names_those_that_did_not_hold() -> None:
    line = {"trial": 1, "variant": "plain", "fault": "disk", "what": "a|b", "starts": 2, "seconds": 9.0, "commit": "c"}
    text = tables([line | {"wrong": []}, line | {"trial": 2, "wrong": ["traceback"]}])
    assert "| **all** | **2** | **1** | | |" in text
    assert "| 2 | `c` | disk on plain: a\\|b | traceback |" in text
    marks = "x\n<!-- made by bench.chaos -->\nold\n<!-- end -->\ny\n"
    assert page(page(marks, []), []).count("| **all** |") == 1
