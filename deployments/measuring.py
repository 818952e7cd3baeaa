"""``python -m deployments.measuring PROBLEMS [KEY=VALUE]...``: each new checkpoint is evaluated on PROBLEMS by itself.

Reads PREFECT_API_URL; writes an automation to that server: an asset of a checkpoint (oapl_extras/prefect_pages) starts
`oapl-evaluate` with that model. Doing it again replaces the problem set and the settings.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployments.deploying import put, within_bounds
from oapl_core.errors import ConfigError
from oapl_core.problems.published import published_sets
from oapl_core.settings.evaluation_folder import SetConfig

FLOW = "oapl-evaluate"
_USAGE = "set PREFECT_API_URL, and give a problem set: python -m deployments.measuring problems.jsonl samples=8"


def main(words: Sequence[str]) -> int:
    """Set up the automation; returns the exit code."""
    # without the variable Prefect starts a temporary server of its own, on which nothing would ever happen
    if not os.environ.get("PREFECT_API_URL") or not words or not all("=" in word for word in words[1:]):
        print(f"error: {_USAGE}")
        return 2
    try:
        problems = problem_set(words[0])
        if code := within_bounds(lambda: evaluate_checkpoints(problems, words[1:])):
            return code
    except ConfigError as error:
        print(f"error: {error}")
        return 2
    print(f"each checkpoint that a run makes from now on will be evaluated on {words[0]}")
    return 0


def problem_set(word: str) -> dict[str, Any]:
    """Return the ``problems`` of `oapl-evaluate`: a file, or a set by name.

    Raises:
        ConfigError: there is neither.
    """
    if Path(word).exists():
        return SetConfig(path=Path(word).absolute()).model_dump(mode="json", exclude_defaults=True)
    published_sets().check(SetConfig(name=word))
    return {"name": word}


def evaluate_checkpoints(problems: dict[str, Any], overrides: Sequence[str]) -> None:
    """Make or replace the automation.

    Raises:
        ConfigError: the server does not know the deployment.
    """
    from prefect.automations import Automation
    from prefect.client.orchestration import get_client
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(f"{FLOW}/{FLOW}")
        except ObjectNotFound:
            raise ConfigError(f"the server has no deployment {FLOW}; `make deploy` makes it") from None
    parameters = {"models": ["{{ event.payload.model }}"], "problems": problems, "overrides": list(overrides)}
    wanted = Automation(
        name="oapl: evaluate checkpoints",
        description=f"Starts {FLOW} with each checkpoint that a run makes",
        trigger=EventTrigger(
            expect={"prefect.asset.materialization.succeeded"},
            # a server compares beginnings: the key begins with the run's name, the title of a checkpoint with the word
            match=ResourceSpecification({"prefect.resource.id": "oapl://*", "prefect.resource.name": "checkpoint *"}),
            posture=Posture.Reactive,
            # each by itself: without it, events of a moment would count together
            for_each={"prefect.resource.id"},
            threshold=1,
        ),
        actions=[
            RunDeployment(source="selected", deployment_id=deployment.id, parameters=parameters, job_variables=None)
        ],
    )
    put(wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
