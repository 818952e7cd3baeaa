"""Problems from a task of reasoning-gym: entries are made here, from a seed, and kept whole in the column `info`.

Pure but for the package, which is optional (`pip install "oapl[gym]"`). What an answer earns is computed from `info`
alone (verdicts/reasoning_gym.py). `oapl gym` is the command line.
"""

import difflib
import hashlib
import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from oapl_core.errors import ConfigError
from oapl_core.problems.problem_set import checked
from oapl_core.storable import json_text
from oapl_extras.problem_sets.curation import Tally

TRIES = 20
"""Entries that are made for each problem that is wanted: small tasks repeat themselves."""
_SEVERAL = "(several answers are right)"


def task_names() -> list[str]:
    """List every task that the package has.

    Raises:
        ConfigError: it is not installed.
    """
    _package()
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def _package() -> Any:
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # one of its packages has some
            import reasoning_gym
    except ImportError as error:
        raise ConfigError(
            f"reasoning-gym cannot be imported ({error}); install it with `make work` in a checkout, else with "
            '`pip install "oapl[gym]"`, which compiles a package: gcc and Python\'s headers must be there'
        ) from None
    return reasoning_gym


def task_problems(
    name: str, config: Mapping[str, Any], seed: int, size: int, split: str, tally: Tally, known: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Complete problems, ``size`` of them or as many as 20 times as many entries give; counts what is left out.

    ``known`` are statements that must not come again. Entry i of seed s is often entry i - 1 of seed s + 1, so another
    seed alone makes no other set.

    Raises:
        ConfigError: there is no such task, or it has no such settings.
    """
    dataset, seen = _dataset(name, config, seed, TRIES * size), set(known)
    # two sets of one task may be in a run: their ids must differ with what they were made by
    label = hashlib.sha256(json.dumps([config, seed], sort_keys=True).encode()).hexdigest()[:8]
    made = {"task": name, "config": dict(config), "seed": seed, "version": version("reasoning-gym")}
    while tally.kept < size and tally.read < TRIES * size:
        entry = dataset[tally.read]
        tally.read += 1
        statement, info = entry["question"], json_text({**made, "entry": entry}, default=repr)
        stored = json.loads(info)["entry"]
        if statement in seen:  # word for word: of two sums one sign may be all that differs
            tally.dropped["the same statement was there before"] += 1
        elif dataset.score_answer(entry["answer"], stored) != dataset.score_answer(entry["answer"], entry):
            tally.dropped["its score needs more of the entry than JSON keeps"] += 1
        else:
            seen.add(statement)
            tally.kept += 1
            raw = {
                "problem_id": f"{name}/{label}-{tally.read - 1}",
                "kind": "math",  # an answer in a box, but compared as text: not every task's is a formula
                "checker": "same_text",
                "statement": statement,
                "answer": entry["answer"] or _SEVERAL,
                "source": name,
                "platform": "reasoning-gym",
                "info": info,
            }
            yield checked(raw, split, f"{name}[{tally.read - 1}]")


def demonstration(problem: Mapping[str, Any]) -> dict[str, Any] | None:
    """Put the entry's own answer in a box, as demonstrations and [pretrain] have it; None if it has none."""
    if problem["answer"] == _SEVERAL:
        return None
    solution = f"\\boxed{{{problem['answer']}}}"
    names = {name: problem[name] for name in ("problem_id", "statement")}
    return names | {"solution": solution, "solutions": [solution]}


def _dataset(name: str, config: Mapping[str, Any], seed: int, size: int) -> Any:
    if name not in task_names():
        near = ", ".join(difflib.get_close_matches(name, task_names(), 5, 0.5)) or "`oapl gym` lists them"
        raise ConfigError(f"reasoning-gym has no task {name!r}; near it: {near}")
    try:
        return _package().create_dataset(name, **config, seed=seed, size=size)
    except (TypeError, ValueError, AssertionError) as error:  # its settings are asserted
        reason = str(error).rpartition("__init__() ")[2] or "it does not say why"
        raise ConfigError(f"reasoning-gym refuses the settings of {name} ({reason}); see its source") from None
