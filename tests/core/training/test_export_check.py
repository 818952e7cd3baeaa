"""An exported checkpoint that is not what was trained fails the stage before the ledger knows of it."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from oapl_core.errors import StageFailed
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.run import Run
from oapl_core.training.epochs import export_epoch
from oapl_core.training.examples import Batch, read_examples
from oapl_core.training.job import Job, make_job
from oapl_core.training.model.checkpoint import StoredModel, load_model
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.saving import export_check
from oapl_core.training.saving.state import Reached
from oapl_core.training.steps import Trainer
from tests.core.training.made_round import made_groups, make_run, write_groups
from tests.core.training.plain_engine import PlainEngine


@dataclass(frozen=True)
class Damaging(StoredModel):
    """Exports as usual; then something happens to the folder."""

    damage: Callable[[Path], None] = lambda _: None

    def export(self, weights: Mapping[str, Tensor], target: Path) -> None:
        super().export(weights, target)
        self.damage(target)


def change_one_value(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] += 2e-7
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def change_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))


def export(folder: Path, model: Path, damage: Callable[[Path], None]) -> Job:
    """Train two steps with a plain engine and export the epoch."""
    run: Run = make_run(folder, model, epochs=1, trackers=[])
    write_groups(run, made_groups(model))
    job = make_job(run, 0)
    examples = read_examples(run.groups(0), policy_hash(model), model)
    stored = load_model(model)
    damaging = Damaging(stored.model, stored.types, model, damage)
    engine = PlainEngine(Policy(stored.model.float()), run.config.training)
    trainer = Trainer(
        engine=engine,
        objective=run.config.objective.loaded("behavior"),
        examples=examples,
        training=run.config.training,
        seed=0,
        round_number=0,
        epochs=1,
    )
    rows = trainer.epoch(1, lambda _: None)
    export_epoch(job, trainer, damaging, Reached(1, rows), 0.0)
    return job


def test_an_export_is_recorded_with_what_rounding_did_to_it(tmp_path: Path, sharp_model: Path) -> None:
    job = export(tmp_path, sharp_model, lambda _: None)
    [entry] = [e for e in job.run.ledger.artifacts().values() if e.artifact.endswith("epoch_01")]
    assert entry.details["export_difference"] < 1e-6


def test_an_export_in_a_coarser_type_may_differ_by_its_rounding(tmp_path: Path, sharp_model: Path) -> None:
    coarse = Path(shutil.copytree(sharp_model, tmp_path / "model"))
    load_model(sharp_model).model.to(torch.bfloat16).save_pretrained(coarse)
    job = export(tmp_path, coarse, lambda _: None)
    [entry] = [e for e in job.run.ledger.artifacts().values() if e.artifact.endswith("epoch_01")]
    assert 1e-5 < entry.details["export_difference"] < 5e-2


def test_what_a_coarser_type_rounds_hides_no_other_config(tmp_path: Path, sharp_model: Path) -> None:
    """A change of log-probs that is smaller than the rounding of bfloat16 is still seen."""
    coarse = Path(shutil.copytree(sharp_model, tmp_path / "model"))
    load_model(sharp_model).model.to(torch.bfloat16).save_pretrained(coarse)

    def a_little(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))

    with pytest.raises(StageFailed, match=r"differ from the trainer's by 0\.00\d+ nats per token"):
        export(tmp_path, coarse, a_little)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change_one_value, "the exported weight model.norm.weight is not the trained one"),
        (cut_short, "the exported checkpoint cannot be used"),
        (change_config, "log-probs of the exported checkpoint differ from the trainer's by"),
    ],
)
def test_a_damaged_export_fails_before_it_is_recorded(
    damage: Callable[[Path], None], said: str, tmp_path: Path, sharp_model: Path
) -> None:
    with pytest.raises(StageFailed, match=said):
        export(tmp_path, sharp_model, damage)
    run = Run.open(tmp_path / "tiny-seed0")
    assert [name for name in run.ledger.artifacts() if "/4_checkpoint/" in name] == []
    assert [path.name for path in run.checkpoints(0).iterdir()] == [], "nothing that a later step could take for it"


def test_the_check_has_every_core_and_gives_them_back(tmp_path: Path, sharp_model: Path) -> None:
    seen = list[int]()
    policy = Policy(AutoModelForCausalLM.from_pretrained(sharp_model))
    policy.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ids, one, whole = torch.arange(4)[None], torch.tensor([1]), torch.tensor([4])
        batch = Batch(ids, one, whole, torch.zeros(1, 3), torch.tensor([0]))
        (found,) = export_check._scored(policy, [batch], torch.float32)
        assert (seen, torch.get_num_threads()) == ([len(os.sched_getaffinity(0))], 1)
    finally:
        torch.set_num_threads(before)
    assert found.shape == (1, 3) and found.device.type == "cpu"


def test_the_sample_is_the_same_for_every_rank_and_short(tmp_path: Path, sharp_model: Path) -> None:
    from oapl_core.training.saving.export_check import sample

    run = make_run(tmp_path, sharp_model)
    write_groups(run, made_groups(sharp_model, groups=30))
    examples: Any = read_examples(run.groups(0), policy_hash(sharp_model), sharp_model)
    one, other = (sample(examples, 0, 0, 1) for _ in range(2))
    assert [int(b.row_S) for b in one] == [int(b.row_S) for b in other]
    assert max(int(b.length_S) for b in one) <= sorted(examples.lengths)[len(examples.lengths) // 2]
