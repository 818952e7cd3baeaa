"""How a round is cut into parts where nobody says so: decided when it begins, and never anew."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core import files
from oapl_core.changing.forking import with_overrides
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder import cutting
from oapl_core.run_folder.cutting import decide, problems_per_part
from oapl_core.run_folder.run import Run, parts_of
from tests.sampling_run import MadeUpSampler, made_up_model, make_run

PROBLEMS = {"train": [[5, i] for i in range(130)], "validation": [[6]], "heldout": [[7]]}


def begun(folder: Path, **changes: Any) -> Run:
    changes = {"sampling": {"problems_per_part": None, "group_size": 2}, "rounds": [{}, {}]} | changes
    return make_run(folder, made_up_model(folder / "model"), PROBLEMS, **changes)


def changed(run: Run, *overrides: str) -> Run:
    """The run with other settings, as the next start with them finds it."""
    return Run(run.root, with_overrides(run.config, overrides, "test"))


def interrupted(run: Run, answers: int) -> None:
    with pytest.raises(InterruptedError):
        generate(run, 0, lambda model, config: MadeUpSampler(model, config, stop_after=answers))


@pytest.mark.parametrize(
    ("engine", "fleet", "problems", "expected"),
    [
        (1, {}, 4000, 128),
        (8, {}, 4000, 125),
        (8, {}, 40_000, 128),
        (2, {"rollouts": {"at": "gpu", "shares": 4}}, 1000, 32),
        (8, {}, 3, 1),
    ],
)
def test_each_of_several_engines_gets_four_parts(
    tmp_path: Path, engine: int, fleet: dict[str, Any], problems: int, expected: int
) -> None:
    places = {"cache_dir": tmp_path} if fleet else {}
    run = begun(tmp_path, engine={"replicas": engine}, fleet=fleet, **places)
    assert problems_per_part(run, 0, problems) == expected


def test_a_setting_is_a_setting(tmp_path: Path) -> None:
    run = begun(tmp_path, engine={"replicas": 8}, sampling={"problems_per_part": 100})
    assert problems_per_part(run, 0, 4000) == 100


def test_two_machines_may_begin_a_round_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = begun(tmp_path), list[int]()

    def fsync(path: Path) -> None:
        """Let the other one begin and end while the first writes."""
        monkeypatch.setattr(cutting, "fsync", files.fsync)
        other.append(decide(run, 0, 130))

    monkeypatch.setattr(cutting, "fsync", fsync)
    assert decide(run, 0, 130) == 128 and other == [128]
    assert [path.name for path in run.in_flight(0).iterdir()] == ["problems_per_part"]


def test_a_round_that_was_begun_keeps_its_parts(tmp_path: Path) -> None:
    run = begun(tmp_path)
    interrupted(run, answers=3)
    faster = changed(run, "engine.replicas=8")
    assert problems_per_part(faster, 0, 130) == 128, "answers in flight are of parts of 128"
    assert problems_per_part(faster, 1, 130) == 5, "the next round is cut anew"
    generate(run, 0, MadeUpSampler)
    assert problems_per_part(faster, 0, 130) == 128, "its parts say so"
    assert len(parts_of(run.rollouts(0))) == 2
