"""Content of a push: the files of a checkpoint, or of the rounds' rollouts, each with its name there.

Reads the run folder; a round in the authors' schema is made in a folder that the caller gives.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from oapl_core.errors import ConfigError
from oapl_core.evaluation.measures import ON
from oapl_core.files import size_of
from oapl_core.model_files.model_folder import check_model_folder
from oapl_core.run_folder.run import Run, parts_of, round_name
from oapl_core.run_folder.run_record import RunRecord
from oapl_extras.exchange import cards
from oapl_extras.exchange.export import export
from oapl_extras.exchange.scrubbing import refuse_secrets, secrets, without_paths

_RECOMMENDED = ON["validation"]
"""Beginning of the origin, in an evaluation card, of the checkpoint that it recommends."""
_NOT_PUSHED = "not to be redistributed"
"""In the licence of a problem set (data/sources.toml)."""


@dataclass(frozen=True)
class Outgoing:
    """A file and its name in the repository."""

    name: str
    content: Path | bytes

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return len(self.content) if isinstance(self.content, bytes) else size_of(self.content)


@dataclass(frozen=True)
class Publication:
    """Content of a repository on the hub: its files and their kind."""

    kind: Literal["model", "dataset"]
    title: str
    files: Sequence[Outgoing]

    @property
    def card(self) -> str:
        """Text of its README.md."""
        return next(bytes(file.content).decode() for file in self.files if file.name == "README.md")

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)


def checkpoint_of(run: Run, number: int | None = None, epoch: int | None = None) -> tuple[int, int]:
    """Round and epoch of what is pushed: as asked, else the evaluation's choice, else the newest checkpoint.

    Raises:
        ConfigError: that checkpoint is not there (any more).
    """
    made = RunRecord(run).trained_epochs
    there = [at for at in made if (run.checkpoint(*at) / "config.json").exists()]
    wanted = [at for at in there if number in (None, at[0]) and epoch in (None, at[1])]
    if not wanted:
        shown = ", ".join(f"round {n} epoch {e}" for n, e in there) or "none"
        raise ConfigError(f"{run.root}: has no such checkpoint; there are {shown}")
    if number is None and epoch is None:
        chosen = _chosen(run)
        wanted = [at for at in wanted if made[at] == chosen] or wanted
    return wanted[-1]


def _chosen(run: Run) -> str | None:
    """Return the policy hash of the recommended checkpoint: a folder that was moved since has another path."""
    card = read_card(run)
    if card is None:
        return None
    labels = (model["label"] for model in card["settings"]["models"] if model["origin"].startswith(_RECOMMENDED))
    return next((str(card["asked"]["models"][label]["policy_hash"]) for label in labels), None)


def read_card(run: Run) -> dict[str, Any] | None:
    """Read the run's evaluation card; None before its evaluation."""
    return json.loads(run.card().read_text()) if run.card().exists() else None


def model(run: Run, at: tuple[int, int], licence: str | None, data: str | None) -> Publication:
    """Gather a checkpoint's files as others load it, with its card.

    Raises:
        DataError: the folder is not a whole model, is not what the run recorded, or a file holds a secret.
    """
    folder = run.checkpoint(*at)
    check_model_folder(folder)
    # files under this run's name are those that the run made, not those that lie in the folder today
    policy = run.check_policy(folder)
    card = read_card(run)
    files = [Outgoing(path.name, path) for path in sorted(folder.iterdir()) if path.is_file()]
    if card:
        files += [
            Outgoing("evaluation/card.json", _json(without_paths(card, run.root))),
            Outgoing("evaluation/card.md", without_paths(run.card_text().read_text(), run.root).encode()),
        ]
    text = cards.of_model(run, at, policy, without_paths(card, run.root), licence, data)
    return _checked(run, "model", f"{run.root.name}, round {at[0]} epoch {at[1]}", text, files)


def rollouts(run: Run, numbers: Sequence[int], folder: Path, licence: str | None) -> Publication:
    """Return the rounds as a data set: rollouts in the authors' schema, verdicts and groups as the run has them.

    Raises:
        ConfigError: the problems' licence forbids it.
        DataError: a round has no rollouts, or a file holds a secret.
    """
    _refuse_unpublishable(run)
    files: list[Outgoing] = []
    for number in numbers:
        name = round_name(number)
        made = folder / f"{name}.parquet"
        made.unlink(missing_ok=True)  # left by a push that was killed
        export(run, number, made, tell=lambda _: None)  # silent: nobody will see that file
        files.append(Outgoing(f"rollouts/{name}.parquet", made))
        files += [Outgoing(f"verdicts/{name}-{path.name}", path) for path in parts_of(run.verdicts(number))]
        if run.groups(number).exists():
            files.append(Outgoing(f"groups/{name}.parquet", run.groups(number)))
    return _checked(run, "dataset", run.root.name, cards.of_rollouts(run, numbers, files, licence), files)


def _refuse_unpublishable(run: Run) -> None:
    for name, licence in cards.licences(run).items():
        if _NOT_PUSHED in licence:
            raise ConfigError(f"{run.problems}: holds problems of {name}, whose licence is {licence}")


def _checked(run: Run, kind: Literal["model", "dataset"], title: str, card: str, files: list[Outgoing]) -> Publication:
    text = without_paths(card, run.root)
    every = [Outgoing("README.md", text.encode()), *files]
    # all of it before anything is sent: half a push with a secret in it would be half too much
    wanted = secrets()
    for file in every:
        refuse_secrets(file.name, file.content, wanted)
    return Publication(kind, title, every)


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
