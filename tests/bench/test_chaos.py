"""Faults in whole runs: real trials with `-m slow`, hundreds by `python -m bench.chaos`; here, what makes trials."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bench.chaos.compare import differences
from bench.chaos.family import MARK, Family
from bench.chaos.page import DATA, PAGE, hit_nothing, page, tables
from bench.chaos.trial import FAULTS, Trial, _kill_one, _targets, _workers
from bench.chaos.world import ROOT, VARIANTS, Control, Started, World, built_faults, prefect_server, signal_to
from oapl_core.run_folder.run import Run
from oapl_core.sandbox import probe
from tests.core.verdicts.test_verify import SLOW, made_run
from tests.core.verdicts.test_verify import verdicts as read_verdicts
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


def test_the_page_tells_of_older_trials_too_which_hit_nothing() -> None:
    line = {"trial": 1, "variant": "plain", "fault": "share", "what": "evaluation + 5.6 s", "refusals": [], "wrong": []}
    assert hit_nothing(line)
    assert not hit_nothing(line | {"what": "evaluation + 5.6 s; one of 2 workers"})
    refused = {"refusals": ["error: RUN: continues from X, which was removed (the next round is trained); do so"]}
    disk = line | {"fault": "disk", "what": "round 1: training + 9.0 s; EIO for 100 %"}
    assert not hit_nothing(disk) and hit_nothing(disk | refused)
    recorded = [json.loads(text) for text in DATA.read_text().splitlines()]
    assert sum(one["fault"] == "share" and not hit_nothing(one) for one in recorded) == 0
    assert page(PAGE.read_text(), recorded) == PAGE.read_text()


def test_a_process_without_the_mark_is_known_by_its_parent_also_when_that_is_gone(tmp_path: Path) -> None:
    lone = (
        f"import subprocess, sys; subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'], env={{}})"
    )
    waits = f"{lone}; print('made', flush=True); sys.stdin.read()"
    family = Family(str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin and parent.stdout
        with family.watched(parent.pid):
            parent.stdout.readline()
            deadline = time.monotonic() + 30
            while len(family.living()) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            parent.stdin.close()
            parent.wait()
            parent.stdout.close()
        (orphan,) = family.living()
        assert orphan != parent.pid
        assert signal_to(orphan, signal.SIGKILL)


def test_a_worker_of_the_verifier_is_found_and_killed_and_when_all_is_over_nothing_was_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, one = made_run(tmp_path / "run", parts=4, right=SLOW), trial(tmp_path, 0, "share", "plain")
    command = [sys.executable, "-m", "oapl_core.verdicts.verify", str(run.root), "--round", "0"]
    environment = {**os.environ, MARK: str(one.world.folder), "PYTHONPATH": str(ROOT)}
    killed = list[tuple[int, list[int]]]()

    def kill(process: int, number: int) -> bool:
        killed.append((process, _targets(one, started)["verifier"]))
        return signal_to(process, number)

    monkeypatch.setattr("bench.chaos.trial.signal_to", kill)
    with Started(command, environment, tmp_path / "output", one.world.family) as started:
        _kill_one(one, started, partial(_workers, one, started))
        assert not one.outcome.hit_nothing and one.outcome.what == "; one of 1"
        assert started.wait(120).code == 0, started.output
        _kill_one(one, started, partial(_workers, one, started))
    told = dict(vars(one.outcome))  # mypy remembers what the first call left
    assert told["hit_nothing"] and told["what"].endswith("; none was there")
    ((victim, watchers),) = killed
    assert len(watchers) == 2 and victim in watchers, (
        "what a fork server forked is not hit, nor is the one in its proof"
    )
    found = {row["sandbox_level"] for row in read_verdicts(run)}
    assert found == {probe()}, "isolation is not weakened"
    assert one.world.leftovers() == []


def test_no_trial_is_made_where_faults_cannot_be_or_no_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.chaos.world.sys.executable", "/bin/false")
    with pytest.raises(SystemExit, match="Prefect's server ended with code 1; see "), prefect_server(tmp_path):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="gcc is missing"):
        built_faults(tmp_path)


def test_the_page_counts_trials_and_names_those_that_did_not_hold() -> None:
    line = {"trial": 1, "variant": "plain", "fault": "disk", "what": "a|b", "starts": 2, "seconds": 9.0, "commit": "c"}
    missed = [line | {"wrong": [], "hit_nothing": True}, line | {"wrong": [], "hit_nothing": False}]
    text = tables([line | {"wrong": []}, line | {"trial": 2, "wrong": ["traceback"]}, *missed])
    assert "| **all** | **4** | **1** | **2** | | |" in text
    assert "| 2 | `c` | disk on plain: a\\|b | traceback |" in text
    marks = "x\n<!-- made by bench.chaos -->\nold\n<!-- end -->\ny\n"
    assert page(page(marks, []), []).count("| **all** |") == 1
