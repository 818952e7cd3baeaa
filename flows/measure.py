"""The flow `oapl-evaluate` under its former name, for deployments that exist; the next version drops it."""

from prefect import flow
from prefect.client.schemas.objects import State

from flows.evaluate import EvaluateStart, evaluate_models, evaluation_name
from flows.start import listen
from tasks.stage import progress


@flow(name="oapl-measure", flow_run_name=evaluation_name)
def oapl_measure(start: EvaluateStart) -> State[None]:
    """As `oapl-evaluate`, which replaces it."""
    listen()
    progress.warning("oapl-measure is called oapl-evaluate now; this name works until the next version")
    return evaluate_models(start)
