"""The observer that makes Prefect's assets of a run: one materialisation for each artifact that is recorded meanwhile.

Emits Prefect's own asset events, whose key is ``oapl://RUN/ARTIFACT``. An artifact that was there before, and that no
stage had to make, is none. Nothing depends on them.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect.assets import Asset, AssetProperties
from prefect.context import AssetContext
from prefect.states import Completed

from oapl_core.run_folder.following import Observer
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.recorded import POLICIES
from oapl_core.run_folder.run import CHECKPOINT_DIR, Run
from oapl_extras.prefect_pages.pages import shown

_MOST_INPUTS = 80
"""Related assets of an event; a server takes 100 in all. The payload has the hashes of every input."""
_LONGEST = 500
_EPOCH = re.compile(rf"(round_\d+)/{CHECKPOINT_DIR}/[^/]+/(epoch_\d+)")


class Assets(Observer):
    """Tells Prefect of what is recorded, also of what was finished before a stage failed."""

    def __init__(self, run: Run, tell: Callable[[str], None]) -> None:
        """``tell`` gets a line where Prefect does not take it."""
        self._run, self._tell = run, tell

    def on_artifact(self, entry: ArtifactEntry) -> None:
        """Emit the events of one artifact."""
        with shown(self._tell):
            _emit(self._run, entry)


def _emit(run: Run, entry: ArtifactEntry) -> None:
    made = Asset(key=asset_key(run, entry.artifact), properties=AssetProperties(name=_title(run, entry.artifact)))
    AssetContext(
        downstream_assets={made},
        direct_asset_dependencies={Asset(key=asset_key(run, name)) for name in list(entry.inputs)[:_MOST_INPUTS]},
        materialized_by="oapl",
        materialization_metadata={made.key: facts(run, entry)},
    ).emit_events(Completed())


def asset_key(run: Run, name: str) -> str:
    """``oapl://demo-seed0/round_00/3_groups.parquet``; what lies outside of the run is a file, whoever made it."""
    inside = name in run.ledger.artifacts()
    words = f"{run.root.name}/{name}" if inside else str(_outside(run, name).absolute())
    # Prefect allows no blanks, quotes, brackets and the like
    return f"{'oapl' if inside else 'file'}://{re.sub(r'[^A-Za-z0-9._/+=,:@~-]', '-', words)}"[:_LONGEST]


def _outside(run: Run, name: str) -> Path:
    """Find an input that the ledger does not record: below the run folder, or where its settings' paths start."""
    below = run.root / name  # the same as ``name`` where that is absolute
    return below if below.exists() else run.place(Path(name))


def facts(run: Run, entry: ArtifactEntry) -> dict[str, Any]:
    """Collect the ledger's facts of an artifact; of a checkpoint also its name for `oapl evaluate` (``model``)."""
    policies = entry.details.get(POLICIES)
    hashes = ", ".join(map(str, policies)) if policies else entry.details.get("policy_hash")
    epoch = _EPOCH.fullmatch(entry.artifact)
    return {
        "rows": entry.rows,
        "bytes": entry.bytes,
        "sha256": entry.sha256,
        "seconds": entry.seconds,
        "inputs": dict(entry.inputs),
        **({"policy_hash": hashes} if hashes else {}),
        **({"model": f"{run.root.absolute()}:{epoch[1]}/{epoch[2]}"} if epoch else {}),
    }


def _title(run: Run, name: str) -> str:
    """Begins with `checkpoint` where it is one: automations compare beginnings, and keys begin with the run."""
    kind = "checkpoint " if _EPOCH.fullmatch(name) else ""
    return f"{kind}{run.root.name}/{name}"
