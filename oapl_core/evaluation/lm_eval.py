"""The lm-evaluation-harness as a program of its own: its environment, tasks made of our problems, what it says of them.

Written from lm_eval 0.4.13 (lm_eval/models/openai_completions.py, api/task.py). Answers are asked for through an
OpenAI-compatible server; extraction and comparison are the harness's own filter and metric. Programs are not judged
so: its metric runs them without a sandbox.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from oapl_core.errors import ConfigError, DataError, StageFailed
from oapl_core.seeds import derive_seed
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig

NAME = "lm-eval"
TASK = "oapl_problems"
FILTER, METRIC = "last-box", "exact_match"
_PINNED = Path(__file__).with_name("harnesses.toml")
_MADE = "made"
"""Written last: an environment without it was interrupted."""
_INSTALL_S, _CONCURRENT = 1800, 32
_BOXED = r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
"""Braces may be nested twice, as in \\boxed{\\frac{1}{\\sqrt{2}}}."""


def environment(cache: Path, tell: Callable[[str], None]) -> Path:
    """The interpreter of the harness's environment, which is made when it is not there.

    Args:
        cache: folder of environments.
        tell: is told that one is being made.

    Raises:
        ConfigError: it cannot be made, for example without a package registry; one line.
    """
    packages: list[str] = tomllib.loads(_PINNED.read_text(encoding="utf-8"))[NAME]["packages"]
    folder = cache / f"{NAME}-{derive_seed(0, *packages, sys.version):08x}"  # another list or Python is another one
    python = folder.absolute() / "bin" / "python"
    if (folder / _MADE).exists():
        return python
    tell(f"{NAME}: making its environment, {len(packages)} packages, in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    steps = [[sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "--quiet", *packages]]
    if uv.exists():  # many times as fast
        steps = [
            [str(uv), "venv", "--quiet", "--python", sys.executable, str(folder)],
            [str(uv), "pip", "install", "--quiet", "--python", str(python), *packages],
        ]
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.CalledProcessError as error:
        last = next((line for line in reversed(error.stderr.splitlines()) if line.strip()), "it said nothing")
        raise ConfigError(
            f"--harness {NAME}: its environment {folder} could not be made ({last.strip()[:200]}); it needs a package "
            "registry once, or that folder from a machine that has one"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--harness {NAME}: installing its packages took more than {_INSTALL_S} s") from None
    (folder / _MADE).write_text("\n".join(packages) + "\n")
    return python


def write_task(folder: Path, documents: Sequence[Mapping[str, Any]], config: EvaluationFolderConfig) -> None:
    """Write our problems as a task of the harness: a YAML file and its documents.

    Args:
        folder: made if it is missing; ``--include_path`` of the harness.
        documents: ``problem_id``, ``sample``, ``prompt`` (text with the chat template's markers), ``answer``: one for
            each answer that is asked for, since the harness scores one answer to a document.
        config: how answers are sampled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in documents), encoding="utf-8")
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path.absolute())}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {
            "until": list(config.stop or ()),
            "do_sample": True,
            "temperature": config.temperature,
            "top_p": config.top_p,
            "max_gen_toks": config.max_tokens,
            "seed": None,  # else every request has 1234, and all answers to a problem are the same
            "add_special_tokens": False,  # the prompt's text has them
        },
        "filter_list": [
            {
                "name": FILTER,
                "filter": [
                    {"function": "regex", "regex_pattern": _BOXED, "group_select": -1},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [
            {
                "metric": METRIC,
                "aggregation": "mean",
                "higher_is_better": True,
                "regexes_to_ignore": [",", r"\$", r"\s"],
            }
        ],
        "metadata": {"version": 1.0},
    }
    (folder / f"{TASK}.yaml").write_text(yaml.safe_dump(task, sort_keys=False), encoding="utf-8")


def run(python: Path, url: str, model: str, tasks: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run tasks against a server; the content of the harness's results file.

    Args:
        python: of ``environment``.
        url: ``http://host:port`` of the server.
        model: what it calls the model.
        tasks: names; ``TASK`` is the one in ``folder``.
        folder: of ``write_task``; its subfolder ``out`` gets results and samples.

    Raises:
        StageFailed: the harness failed; its last line.
        DataError: it wrote no results.
    """
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    server = f"model={model},base_url={url}/v1/completions,num_concurrent={_CONCURRENT},max_retries=3"
    command = [str(python), "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", ",".join(tasks)]
    command += ["--model_args", f"{server},tokenizer_backend=none,tokenized_requests=False", "--batch_size", "1"]
    command += ["--include_path", str(folder), "--output_path", str(out), "--log_samples"]
    # our own task is on the disk: nothing is asked of the hub for it
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"} if list(tasks) == [TASK] else {}
    own = {"HF_DATASETS_CACHE": str(folder / "datasets"), "OPENAI_API_KEY": "unused", **offline}
    log = folder / "harness.log"
    with log.open("wb") as sink:
        done = subprocess.run(command, stdout=sink, stderr=sink, env=os.environ | own, check=False)
    if done.returncode:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise StageFailed(
            f"{NAME} ended with {done.returncode}: {(lines or ['nothing was said'])[-1][:300]}; see {log}"
        )
    found = sorted(out.rglob("results_*.json"))
    if not found:
        raise DataError(f"{out}: {NAME} wrote no results; see {log}")
    content: dict[str, Any] = json.loads(found[-1].read_text())
    return content


def scored(folder: Path) -> list[tuple[str, bool]]:
    """Problem and whether the harness calls the answer correct, for each answer to our own task.

    Raises:
        DataError: the samples are missing.
    """
    found = sorted((folder / "out").rglob(f"samples_{TASK}_*.jsonl"))
    if not found:
        raise DataError(f"{folder / 'out'}: {NAME} wrote no samples; see {folder / 'harness.log'}")
    rows = [json.loads(line) for line in found[-1].read_text(encoding="utf-8").splitlines()]
    return [(row["doc"]["problem_id"], row[METRIC] == 1.0) for row in rows if row["filter"] == FILTER]
