"""The verb that fetches the base model from the hub, where `model` names one at a commit.

Reads the hub or its cache (model_hub.py has their environment variables). Writes the model's folder there, and
`base_model.json` in the run folder: the model's place, policy hash, name and commit.

    python -m oapl_core.pretraining.fetch RUN_DIR
"""

import json

from oapl_core.errors import ConfigError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.model_files.model_hub import fetched
from oapl_core.progress import say
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb


def fetch(run: Run) -> None:
    """Fetch what of the model is missing and record where it is."""
    model = run.config.hub_model
    if model is None:
        raise ConfigError(f"{run.root}: `model` is not on the hub; there is nothing to fetch")
    folder = fetched(model)
    named = {"hub": model.name, "commit": model.commit}
    inputs = run.inputs([folder])  # so that a model that vanished from the cache is fetched again
    if run.is_done(run.base_record, inputs, named):
        say("base model is up to date")
        return
    with run.writing(run.base_record, inputs, named) as draft:
        identity = {"policy_hash": policy_hash(folder), **named}
        draft.path.write_text(json.dumps({"path": str(folder), **identity}) + "\n")
        draft.rows, draft.details = 1, identity
    say(f"base model: {folder}")


if __name__ == "__main__":
    raise SystemExit(run_verb(fetch, has_round=False))
