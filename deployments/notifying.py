"""``python -m deployments.notifying URL``: the Prefect server posts to URL when a run of ours fails, crashes or stalls.

Reads PREFECT_API_URL; writes a Webhook block and an automation to that server, which itself does the posting: nothing
of ours need be alive. Doing it again replaces the URL. The body is JSON with ``text``, which Slack, Mattermost, Teams
workflows and ntfy show as it is.
"""

import os
import sys
from uuid import UUID

from deployments.deploying import put, within_bounds
from deployments.short_names import NAMES

NAME = "oapl-failures"
"""Name of the block; the automation's begins with `oapl:`."""
_STATES = ("Failed", "Crashed", "TimedOut")
_BODY = (
    '{"text": {{ (flow.name ~ " (" ~ flow_run.name ~ "): " ~ flow_run.state.name ~ ". " ~ '
    '(flow_run.state.message or ""))|tojson }}, "flow_run": {{ flow_run.id|string|tojson }}}'
)
"""Jinja, filled in by the server; every text is quoted as JSON, whatever an error message holds."""


def main() -> int:
    """Set up the notification; returns the exit code."""
    # without the variable Prefect starts a temporary server of its own, which would post nothing
    if not os.environ.get("PREFECT_API_URL") or len(sys.argv) != 2 or "://" not in sys.argv[1]:
        print("error: set PREFECT_API_URL, and give the URL to post to: python -m deployments.notifying https://...")
        return 2
    if code := within_bounds(lambda: post_failures_to(sys.argv[1])):
        return code
    print("the server will post failed, crashed and timed-out runs of " + ", ".join(NAMES))
    return 0


def post_failures_to(url: str) -> None:
    """Make or replace the block and the automation."""
    from prefect.automations import Automation
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    wanted = Automation(
        name="oapl: post failures",
        description=f"Posts to the URL of the Webhook block {NAME}",
        trigger=EventTrigger(
            expect={f"prefect.flow-run.{state}" for state in _STATES},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": [*NAMES]}),
            # reactive: acts on an event that comes; a proactive trigger waits for one that does not
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[CallWebhook(block_document_id=_webhook(url), payload=_BODY)],
    )
    put(wanted)


def _webhook(url: str) -> UUID:
    """Save the block and return its id; its URL is stored encrypted, since that of a chat is a secret."""
    from prefect.blocks.webhook import Webhook
    from prefect.types import SecretDict
    from pydantic import SecretStr

    webhook = Webhook(method="POST", url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"}))
    saved = webhook.save(NAME, overwrite=True)
    assert isinstance(saved, UUID), "outside of an event loop saving waits"
    return saved


if __name__ == "__main__":
    sys.exit(main())
