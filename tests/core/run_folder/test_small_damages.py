"""Small damages of a run's two records: one line of error, or the run as it was with something to make again."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from oapl_core.errors import OaplError
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.checking import findings
from oapl_core.run_folder.run import Run
from tests.synthetic_run import Sizes, write_synthetic_run

Damage = Callable[[bytes, random.Random], bytes]
PLACES = 150
"""Of each kind of damage in each file."""


def _line(lines: list[bytes], random_: random.Random) -> int:
    return random_.randrange(len(lines))


def flip_bit(content: bytes, random_: random.Random) -> bytes:
    place = random_.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << random_.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, random_: random.Random) -> bytes:
    return content[: random_.randrange(len(content))]


def delete_line(content: bytes, random_: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[_line(lines, random_)]
    return b"".join(lines)


def duplicate_line(content: bytes, random_: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(_line(lines, random_), lines[_line(lines, random_)])
    return b"".join(lines)


def swap_lines(content: bytes, random_: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    one, other = _line(lines, random_), _line(lines, random_)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def blank(content: bytes, random_: random.Random) -> bytes:
    """A block that was never written reads as zeros."""
    start = random_.randrange(len(content))
    block = content[start : start + random_.choice([1, 16, 512])]
    return content[:start] + bytes(len(block)) + content[start + len(block) :]


def garble(content: bytes, random_: random.Random) -> bytes:
    start = random_.randrange(len(content))
    return content[:start] + random_.randbytes(random_.choice([1, 4, 64])) + content[start + 8 :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_synthetic_run(
        tmp_path_factory.mktemp("run"), Sizes(train=4, validation=2, heldout=2, group=2, samples=2, epochs=(1, 1))
    )


def opened(root: Path, where: str) -> tuple[Run, set[str]] | str:
    """What every command does first, and what `oapl check` does: the run and its finished steps, or why not."""
    try:
        run = Run.open(root)
        found = run, {step.title for step in finished(run)}
        list(findings(run))
    except OaplError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error
    return found


@pytest.mark.slow_if(case=lambda given: given["damage"] in (duplicate_line, swap_lines))
@pytest.mark.parametrize("name", ["ledger.jsonl", "run.json"])
@pytest.mark.parametrize("damage", [flip_bit, cut, delete_line, duplicate_line, swap_lines, blank, garble])
def test_a_damage_is_told_of_or_made_again(whole: Run, tmp_path: Path, damage: Damage, name: str) -> None:
    root = tmp_path / "run"
    shutil.copytree(whole.root, root, copy_function=os.link)
    original, times = (whole.root / name).read_bytes(), Counter[str]()
    (root / name).unlink()
    planned = {step.title for step in steps(whole.config)}
    for number in range(PLACES):
        hurt = damage(original, random.Random(f"{damage.__name__} {name} {number}"))
        (root / name).write_bytes(hurt)
        where = f"{damage.__name__} of {name}, number {number}"
        found = opened(root, where)
        if isinstance(found, str):
            assert name in found, where
            assert "\n" not in found, where
            times["told"] += 1
            continue
        run, done = found
        assert run.config == whole.config, f"{where}: other settings, and nobody says so"
        assert done <= planned, where
        times["as it was" if hurt == original or done == planned else "to be made again"] += 1
    assert sum(times.values()) == PLACES
    if damage in (flip_bit, garble, blank):
        assert times["told"] > PLACES // 5, "else this damaged nothing"
