"""``python -m oapl_core.evaluation.harness DIR``: another project's harness on the same checkpoints.

DIR is a finished evaluation folder. Each of its models is served, the lm-evaluation-harness, in an environment of its
own, asks for as many answers to each maths problem as ours were, and scores them by its own rules. Writes
harness_lm-eval.json, and the card again with both results.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.evaluation import card, card_text, lm_eval
from oapl_core.evaluation.asking import prompts_of
from oapl_core.evaluation.folder import EvaluationFolder
from oapl_core.evaluation.pass_at_k import estimate
from oapl_core.evaluation.served import served
from oapl_core.progress import say
from oapl_core.seeds import derive_seed
from oapl_core.stage import run_verb

CACHE = Path("data/cache/harnesses")


def harness(folder: EvaluationFolder, tasks: str | None = None) -> None:
    """Measure what is not measured yet, and write the card again.

    Args:
        folder: whose card is written.
        tasks: names of the harness's own tasks, with commas, beside our problems.

    Raises:
        ConfigError: the environment cannot be made, or no problem is one that the harness can judge.
        DataError: the evaluation is not finished.
        StageFailed: server or harness failed.
    """
    if not folder.is_finished:
        raise DataError(f"{folder.root}: is not finished; run the same `oapl evaluate` command again")
    path, names = folder.root / f"harness_{lm_eval.NAME}.json", [lm_eval.TASK, *(tasks.split(",") if tasks else [])]
    inputs, settings = folder.inputs([folder.answers]), {"harness": lm_eval.NAME, "tasks": names}
    if not folder.is_done(path, inputs, settings):
        python = lm_eval.environment(folder.place(CACHE), say)
        found = {model.label: _measured(folder, python, model.label, names) for model in folder.config.models}
        with folder.writing(path, inputs, settings) as draft:
            draft.path.write_text(card.as_json(found))
            draft.rows = len(found)
    _into_card(folder, path)


def _measured(folder: EvaluationFolder, python: Path, label: str, tasks: list[str]) -> dict[str, Any]:
    config, work = folder.config, folder.parts(label).with_name(f"{folder.parts(label).name}-{lm_eval.NAME}")
    model = next(model.path for model in config.models if model.label == label)
    lm_eval.write_task(work, _documents(folder, model), config)
    say(f"{lm_eval.NAME}: a server with {label} starts")
    with served(model, "served", config.engine, folder.log(f"server {label}")) as url:
        say(f"{lm_eval.NAME}: asks {label} for {', '.join(tasks)}")
        content = lm_eval.run(python, url, "served", tasks, work)
    counts: dict[str, list[int]] = {}
    for problem, is_correct in lm_eval.scored(work):
        pair = counts.setdefault(problem, [0, 0])
        counts[problem] = [pair[0] + 1, pair[1] + is_correct]
    seed = derive_seed(config.seed, "bootstrap")
    mean = estimate([(n, c) for n, c in counts.values()], 1, config.bootstrap_resamples, seed)
    ours = card.read(folder.card)["results"][label]
    difference = mean.mean - ours["mean_reward"]
    return {
        "version": content.get("lm_eval_version"),
        "average": [mean.mean, mean.low, mean.high],
        "problems": len(counts),
        "answers": sum(n for n, _ in counts.values()),
        "ours": ours["mean_reward"],
        "difference": difference,
        "repeat": ours["repeat"],
        "agrees": abs(difference) <= ours["repeat"],
        "tasks": {name: dict(content["results"][name]) for name in tasks if name != lm_eval.TASK},
    }


def _documents(folder: EvaluationFolder, model: Path) -> list[dict[str, Any]]:
    """A document for each answer; of maths problems, whose prompts our engine gets in the same words."""
    rows = tables.read_table(folder.problems, tables.PROBLEMS, ["problem_id", "kind", "answer"]).to_pylist()
    answers = {row["problem_id"]: row["answer"] for row in rows if row["kind"] == "math"}
    prompts = tables.read_table(prompts_of(folder, model), tables.PROMPTS, ["problem_id", "prompt"]).to_pylist()
    if len(answers) < len(rows):
        raise ConfigError(
            f"--harness {lm_eval.NAME}: {len(rows) - len(answers)} of {len(rows)} problems are programs, which its "
            "metric would run without a sandbox; give a set of maths problems"
        )
    return [
        {
            "problem_id": row["problem_id"],
            "sample": sample,
            "prompt": row["prompt"],
            "answer": answers[row["problem_id"]],
        }
        for row in prompts
        for sample in range(folder.config.samples)
    ]


def _into_card(folder: EvaluationFolder, results: Path) -> None:
    content: dict[str, Any] = card.read(folder.card)
    found: Mapping[str, Any] = json.loads(results.read_text())
    content["harnesses"] = {lm_eval.NAME: found}
    # with the inputs and settings that the evaluation gives them, so that the folder stays finished
    inputs, settings = folder.inputs([folder.answers]), {"card": card.VERSION}
    files = {folder.card: card.as_json(content), folder.card_text: card_text.markdown(content)}
    for path, text in files.items():
        with folder.writing(path, inputs, settings) as draft:
            draft.path.write_text(text)


if __name__ == "__main__":
    tasks = {"help": "names of the harness's own tasks, with commas, beside our problems"}
    raise SystemExit(run_verb(harness, has_round=False, options={"tasks": tasks}, opens=EvaluationFolder.open))
