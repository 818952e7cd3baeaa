"""The card of a run's own evaluation: its held-out problems, with which `oapl evaluate --card` repeats it.

Reads problems.parquet, prompts.parquet and the ledger, which has the measures; writes
5_evaluation/<objective>_card.json and .md. An answer's seed is the same there and here (``answering.py``), so on CPU a
repetition agrees token by token.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oapl_core.evaluation import card, card_text
from oapl_core.evaluation.answering import Target
from oapl_core.evaluation.asking import chat_template_hash, content_hash, prompt_line, style_hash
from oapl_core.run_folder.run import Run
from oapl_core.settings.measurement import MeasurementConfig
from oapl_core.tables import PROBLEMS, PROMPTS, read_table

_SPLIT = "heldout"


def write_card(run: Run, targets: Mapping[str, Target], origins: Mapping[str, str]) -> None:
    """Write both files of the card, unless they are there.

    Args:
        run: its evaluation is recorded.
        targets: who answered the held-out problems, by the names that results have.
        origins: what each is, in words.
    """
    inputs, settings = run.inputs([run.evaluation()]), {"card": card.VERSION}
    if run.is_done(run.card(), inputs, settings) and run.is_done(run.card_text(), inputs, settings):
        return
    details = run.ledger.artifacts()[run.name(run.evaluation())].details
    named = [replace(target, label=label) for label, target in targets.items()]
    basis = _basis(run, named, origins)
    content = card.made(run, basis, named, details[_SPLIT], details["comparisons"])
    for path, text in ((run.card(), card.as_json(content)), (run.card_text(), card_text.markdown(content))):
        with run.writing(path, inputs, settings) as draft:
            draft.path.write_text(text)


def _basis(run: Run, targets: Sequence[Target], origins: Mapping[str, str]) -> card.Basis:
    rows = read_table(run.prompts, PROMPTS, ["problem_id", "split", "prompt"], only=("split", [_SPLIT])).to_pylist()
    digest = hashlib.sha256()
    for row in rows:
        digest.update(prompt_line(row["problem_id"], row["prompt"]))
    count = read_table(run.problems, PROBLEMS, ["split"], only=("split", [_SPLIT])).num_rows
    entry = run.ledger.artifacts().get(run.name(run.prompts))
    dropped = entry.details.get("dropped_by_split", {}).get(_SPLIT, 0) if entry else 0
    facts: dict[str, Any] = {
        "sha256": digest.hexdigest(),
        "style_sha256": style_hash(run.config.problems.prompt_style),
        "dropped": {"prompt too long": dropped},
    }
    prompts = {
        t.label: card.Prompted(len(rows), {**facts, "chat_template_sha256": chat_template_hash(t.folder)})
        for t in targets
    }
    origin = {
        "set": f"{run.root.name} ({', '.join(path.name for path in run.config.problems.heldout)})",
        "dropped": {},
        "split": _SPLIT,
        "content_sha256": content_hash(run.problems, _SPLIT),
    }
    return card.Basis(_settings(run, targets, origins), count, origin, run.inputs([run.problems]), prompts)


def _settings(run: Run, targets: Sequence[Target], origins: Mapping[str, str]) -> MeasurementConfig:
    """What `oapl evaluate` would have been asked; with absolute paths, since a card is read from anywhere."""
    config, asked = run.config, targets[0].questions
    models = [{"label": t.label, "path": t.folder.absolute(), "origin": origins[t.label]} for t in targets]
    return MeasurementConfig.model_validate(
        {
            "models": models,
            "problems": {"path": run.problems.absolute(), "split": _SPLIT},
            "prompt_style": config.problems.prompt_style,
            "thinking": config.problems.thinking,
            "max_prompt_tokens": config.problems.max_prompt_tokens,
            "samples": asked.samples,
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "seed": asked.seed,
            "bootstrap_resamples": config.evaluation.bootstrap_resamples,
            "engine": config.engine,
            "verifier": config.verifier,
            "engine_python": config.engine_python,
        }
    )
