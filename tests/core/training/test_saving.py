"""How often the state is saved: as the setting says, unless the disk is too slow for that."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from oapl_core.training.saving import state
from oapl_core.training.saving.state import Reached, Saving


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def saved_at(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, steps: int = 400, minutes: float | None = 15.0
) -> list[float]:
    """Seconds at which a state began to be saved, by a round of one step a minute; each save takes ``takes_s``."""
    import torch

    clock, times = Clock(), list[float]()

    def save(*_: Any) -> None:
        times.append(clock.now_s)
        clock.now_s += takes_s

    monkeypatch.setattr(state, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(state, "_save_state", save)
    engine: Any = SimpleNamespace(device="cpu", rank=0, largest=torch.as_tensor)
    job: Any = SimpleNamespace(training=SimpleNamespace(save_steps=None, save_minutes=minutes))
    saving = Saving(engine, job, SimpleNamespace(asked=False))  # type: ignore[arg-type]
    for _ in range(steps):
        clock.now_s += 60
        saving.after_step(Reached())
    return times


def test_on_a_fast_disk_the_setting_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    times = saved_at(monkeypatch, takes_s=30)
    assert [after - before for before, after in itertools.pairwise(times)] == [930.0] * (len(times) - 1)
    assert not capsys.readouterr().out


def test_on_a_slow_disk_saving_takes_at_most_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = saved_at(monkeypatch, takes_s=200)
    assert times[0] == 900, "the first shows how slow it is"
    between = [after - before for before, after in itertools.pairwise(times)]
    assert set(between) == {200 + 64 * 60.0}
    assert 0.045 < 200 / between[0] <= 0.05
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "a state takes 200 s to save, so one is saved every 63 minutes instead of every 15" in said


def test_without_a_clock_nothing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert saved_at(monkeypatch, takes_s=200, minutes=None) == []
