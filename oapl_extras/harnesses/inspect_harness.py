"""inspect, of the UK AI Security Institute: our problems as its tasks, what it says of the answers that it asked for.

Written from inspect_ai 0.3.285. The half that runs in its environment is inspect_runner.py. Maths is judged by its own
`math`. Programs are judged by HumanEval's rule: the first program and the tests behind it run to the end, or do not.
They run in our sandbox (verdicts/program_box.py), since its own `local` one has no walls.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.verdicts.program_box import program_box
from oapl_extras.harnesses.harness_program import CONCURRENT, Found, Harness, run_to_end
from oapl_extras.harnesses.served import MODEL

NAME = "inspect"
_RUNNER = Path(__file__).with_name("inspect_runner.py")
_COLUMNS = ("problem_id", "kind", "prompt", "answer", "starter_code", "entry_point", "tests")


def judges(problem: Mapping[str, Any]) -> bool:
    """Tell whether inspect can say if an answer to this problem is correct."""
    known = problem["kind"] in ("math", "stdin", "function", "assert")
    return known and not problem.get("checker") and not problem.get("language")


def measure(
    python: Path,
    url: str,
    folder: Path,
    problems: Sequence[Mapping[str, Any]],
    config: EvaluationFolderConfig,
    tasks: Sequence[str],
) -> Found:
    """Let inspect ask a server, and score what it answers; arguments are those of ``lm_eval.measure``.

    Raises:
        ConfigError: tasks of its own are asked for; it has none.
        StageFailed: it failed; its last line.
        SandboxError: programs cannot be isolated here.
    """
    if tasks:
        raise ConfigError(f"--harness {NAME}:TASK: {NAME} has no tasks of its own; they are other packages")
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    results.unlink(missing_ok=True)
    with program_box(config.verifier) as box:
        asked = {
            "model": f"openai-api-completions/oapl/{MODEL}",
            "box": str(box),
            "logs": str(folder.absolute() / "logs"),
            "results": str(results.absolute()),
            "samples": config.samples,
            "generation": {
                "temperature": config.temperature,
                "top_p": config.top_p,
                "max_tokens": config.max_tokens,
                "stop_seqs": list(config.stop or ()) or None,
                "max_connections": CONCURRENT,
                "extra_body": {"add_special_tokens": False},  # the prompt's text has them
            },
            "problems": [{name: row.get(name) for name in _COLUMNS} for row in problems],
        }
        (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
        variables = {"OAPL_BASE_URL": f"{url}/v1", "OAPL_API_KEY": "unused"}
        # -P: our modules beside the runner must not be taken for others of their names
        command = [str(python), "-P", str(_RUNNER), str(folder / "asked.json")]
        run_to_end(NAME, command, folder / "harness.log", variables)
    if not results.exists():
        raise StageFailed(f"{NAME} wrote no results; see {folder / 'harness.log'}")
    content = json.loads(results.read_text())
    return Found(content["version"], [(problem, is_correct) for problem, is_correct in content["scores"]])


HARNESS = Harness(judges, measure)
