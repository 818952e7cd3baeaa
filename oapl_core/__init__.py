"""OAPL post-training, without the orchestration: sample, verify, group, train, evaluate, report.

Each stage is a package with one verb module (``python -m oapl_core.<stage>.<verb> RUN_DIR``). Stages meet in the
Parquet files that ``tables.py`` describes, never in imports. docs/architecture.md names the packages that they are
built on. The modules beside the packages serve all.

The names in ``__all__`` are the library (docs/library.md), frozen by tests/core/test_library.py; the rest may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oapl_core.environments.protocol import Action, Observation, ToolError
    from oapl_core.environments.tools import ToolEnvironment
    from oapl_core.errors import ConfigError, DataError, OaplError, SandboxError
    from oapl_core.objectives import Inputs, Loss, Method, Oapl, Objective, StepSizes
    from oapl_core.problems.encoding import load_encoder
    from oapl_core.problems.problem_set import read_problem_set
    from oapl_core.problems.prompts import messages
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.rollouts.requests import Request, SampledAnswer
    from oapl_core.run_folder.run import Run
    from oapl_core.settings.experiment import EngineConfig, Experiment
    from oapl_core.settings.experiment_file import load_experiment
    from oapl_core.settings.verifier import VerifierConfig
    from oapl_core.tables import read_table
    from oapl_core.verdicts.outcomes import Outcome
    from oapl_core.verdicts.verifier import Verdict, Verifier

__version__ = "0.2.0"

# The names above once more, for the interpreter, which must not import a stage for the name of another.
_HOMES = {
    "environments.protocol": "Action Observation ToolError",
    "environments.tools": "ToolEnvironment",
    "errors": "ConfigError DataError OaplError SandboxError",
    "objectives": "Inputs Loss Method Oapl Objective StepSizes",
    "problems.encoding": "load_encoder",
    "problems.problem_set": "read_problem_set",
    "problems.prompts": "messages",
    "rollouts.engine": "SamplingEngine",
    "rollouts.requests": "Request SampledAnswer",
    "run_folder.run": "Run",
    "settings.experiment": "EngineConfig Experiment",
    "settings.experiment_file": "load_experiment",
    "settings.verifier": "VerifierConfig",
    "tables": "read_table",
    "verdicts.outcomes": "Outcome",
    "verdicts.verifier": "Verdict Verifier",
}
_HOME_OF = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Action",
    "ConfigError",
    "DataError",
    "EngineConfig",
    "Experiment",
    "Inputs",
    "Loss",
    "Method",
    "Oapl",
    "OaplError",
    "Objective",
    "Observation",
    "Outcome",
    "Request",
    "Run",
    "SampledAnswer",
    "SamplingEngine",
    "SandboxError",
    "StepSizes",
    "ToolEnvironment",
    "ToolError",
    "Verdict",
    "Verifier",
    "VerifierConfig",
    "load_encoder",
    "load_experiment",
    "messages",
    "read_problem_set",
    "read_table",
]


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__`` when it is first asked for; torch and vLLM only by what uses them."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
