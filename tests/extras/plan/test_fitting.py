"""What `oapl run` refuses before the first stage, and what it says may be slow, on H100s that are not there."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from oapl_core.changing.stopping import until
from oapl_core.devices import Gpu
from oapl_core.errors import ConfigError
from oapl_core.objectives import Objective
from oapl_core.planning.memory import rank_memory
from oapl_core.planning.model_size import ModelSize
from oapl_core.planning.plan import round_steps, steps
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment
from oapl_core.settings.training import GPU_TILE, AdapterConfig
from oapl_extras.plan.engine_memory import engine_memory
from oapl_extras.plan.fitting import Fit, Machine, Obstacle, _disk, largest, look_ahead
from oapl_extras.plan.known_size import known_size
from tests.sampling_run import made_up_model, make_run

EXPERIMENTS = Path(__file__).parents[3] / "deployments" / "experiments"
H100 = Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, "580.159")
NODE = Machine((H100,) * 8, cores=128, host_bytes=1e12)
FOUR = ModelSize(4.02e9, 36, 4096, 1024, 2560, 9728, 151_936, 40_960)
BIG = ModelSize(100e9, 80, 8192, 1024, 8192, 28_672, 152_064)
FOURTEEN = ModelSize(14.77e9, 48, 5120, 1024, 5120, 13_824, 152_064, 131_072)


def fit(*overrides: str, model: ModelSize = FOUR, machine: Machine = NODE) -> Fit:
    config = load_experiment(EXPERIMENTS / "math.toml", overrides)
    return Fit(config, model, machine, steps(config))


def only(found: list[Obstacle]) -> Obstacle:
    assert len(found) == 1, found
    return found[0]


def test_an_experiment_that_fits_has_nothing_against_it() -> None:
    assert list(fit().findings()) == []


def test_four_billion_weights_on_one_gpu_are_refused_with_what_would_fit() -> None:
    one = ["engine.replicas=1", "training.processes=1"]
    machine = Machine((H100,), 16, 1e12)
    found = only(list(fit(*one, machine=machine).findings()))
    assert found.refuses
    assert "memory of a rank, estimated" in found.line
    assert "and a GPU has 79.6, 1 of them" in found.line
    assert "training.offload_optimizer = 'cpu'" in found.line
    assert list(fit(*one, 'training.offload_optimizer="cpu"', machine=machine).findings()) == []
    adapter = ["training.adapter.rank=16", 'training.optimizer_state="fresh"']
    assert list(fit(*one, *adapter, machine=machine).findings()) == []


def test_what_an_objectives_trainer_keeps_is_in_the_memory_of_a_rank() -> None:
    made, one = TypeAdapter(Objective).validate_python, fit()
    settings: tuple[dict[str, Any], ...] = (
        {"name": "grpo"},
        {"name": "ppo_ewma"},
        {"name": "ppo_ewma", "slow_fast": {}},
    )
    plain, averaged, both = (
        replace(one, config=one.config.model_copy(update={"objective": made(given)})).rank for given in settings
    )
    assert plain and averaged and both
    assert averaged.optimizer / plain.optimizer == pytest.approx(16 / 12)
    rounds = "rounds=[{}, {objective={name='ppo_ewma'}}]"
    assert largest(fit(rounds).config).objective.name == "ppo_ewma", "and of rounds the one with the most"
    assert both.optimizer / plain.optimizer == pytest.approx(20 / 12)


@pytest.mark.parametrize(
    ("overrides", "model", "refuses", "line"),
    [
        (["engine.max_model_len=40961"], FOUR, True, "max_model_len = 40961 is more than the 40960 positions"),
        (["engine.replicas=9"], FOUR, True, "engine.replicas = 9 of 1 GPU need 9 GPUs, and 8 are there"),
        (["engine.tensor_parallel_size=2"], FOUR, True, "engine.replicas = 8 of 2 GPUs need 16 GPUs, and 8 are there"),
        (["engine.replicas=3"], FOUR, False, "leave 5 of 8 GPUs idle: engine.replicas = 8 uses them"),
        (["training.processes=9"], FOUR, True, "training.processes = 9 need a GPU each, and 8 are there"),
        (["training.processes=4"], FOUR, False, "training.processes = 4 leaves 4 of 8 GPUs idle"),
        (["training.offload_optimizer='cpu'", "training.zero_stage=2"], BIG, True, "offload_optimizer needs 1.2 TB"),
        (["training.zero_stage=3"], FOURTEEN, False, "engine has room for 30 answers of 10,000 tokens at once"),
        (["engine.gpu_memory_utilization=0.35"], FOURTEEN, True, "fewer than engine.max_model_len = 20480: raise"),
        (["pipeline={}"], FOUR, True, "[pipeline] lets engine and trainer share GPUs"),
        (
            ["pipeline={engine_gpus=[0,1,2,3,4,5,6], trainer_gpus=[8]}"],
            FOUR,
            True,
            "[pipeline] names GPU 8, and 8 are there, counted from 0",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_setting(
    overrides: list[str], model: ModelSize, refuses: bool, line: str
) -> None:
    found = list(fit(*overrides, model=model).findings())
    named = [one for one in found if line in one.line]
    assert named, found
    assert named[0].refuses == refuses


def test_one_core_for_eight_gpus_is_said_with_slurms_option() -> None:
    found = only(list(fit(machine=Machine((H100,) * 8, 1, 1e12)).findings()))
    assert not found.refuses
    assert "1 cores for 8 GPUs" in found.line
    assert "--cpus-per-task=32" in found.line


def test_without_gpus_only_the_model_is_compared() -> None:
    on_cpus = Machine((), 2, 1e9)
    assert list(fit("engine.replicas=9", machine=on_cpus).findings()) == []
    assert only(list(fit("engine.max_model_len=50000", machine=on_cpus).findings())).refuses


def test_stages_that_are_done_or_run_elsewhere_are_not_compared() -> None:
    config = load_experiment(EXPERIMENTS / "math.toml", ["engine.replicas=9", "training.processes=9"])
    training = [round_steps(0)[-1]]
    found = list(Fit(config, FOUR, NODE, training).findings())
    assert ["training.processes = 9" in one.line for one in found] == [True]
    hosts = config.model_copy(update={"training": config.training.model_copy(update={"launcher": "env"})})
    assert list(Fit(hosts, FOUR, NODE, training).findings()) == []


def test_the_numbers_of_an_engine_by_hand() -> None:
    config = load_experiment(EXPERIMENTS / "deepcoder.toml", ["engine.tensor_parallel_size=2"])
    memory = engine_memory(config.engine, FOURTEEN, 80e9)
    assert (memory.gpus, memory.weights, memory.token) == (2, 29.54e9, 2 * 48 * 1024 * 2)
    assert memory.tokens == pytest.approx((0.9 * 160e9 - 29.54e9) / 196_608)


def test_a_models_shape_is_read_from_its_config_and_from_the_same_keys_in_the_settings(tmp_path: Path) -> None:
    folder = made_up_model(tmp_path / "model")
    shape = (
        '{"num_hidden_layers": 36, "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8, '
        '"head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "max_position_embeddings": 40960'
    )
    (folder / "config.json").write_text(shape + "}")
    config = load_experiment(EXPERIMENTS / "math.toml", [f"model={folder}"])
    known = known_size(config)
    assert known is not None
    assert known[0] == ModelSize(1, 36, 4096, 1024, 2560, 9728, 151_936, 40_960)
    (folder / "config.json").write_text(shape + ', "rope_scaling": {"rope_type": "linear", "factor": 2.0}}')
    stretched = known_size(config)
    assert stretched is not None
    assert stretched[0].positions == 81_920
    stated = load_experiment(
        EXPERIMENTS / "math.toml",
        [
            f"model={tmp_path}/none",
            "estimate.model_shape={num_hidden_layers=36, hidden_size=2560, num_attention_heads=32}",
        ],
    )
    known = known_size(stated)
    assert known is not None
    assert (known[0].parameters, known[0].layers, known[0].query_width) == (4.02e9, 36, 2560)


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({}, 2 * 4 * 2 * 16),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, 2 * 2 * 2 * 16),
        ({"full_attention_interval": 4}, 2 * 1 * 2 * 16),
        ({"layer_types": ["linear_attention"] * 4}, 1),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 4 * 576),
    ],
)
def test_what_an_engine_keeps_of_a_token_depends_on_the_kind_of_attention(more: dict[str, Any], kept: int) -> None:
    values = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2} | more
    assert ModelSize.shaped(1.0, values.get).kept_numbers == kept


def a_run(folder: Path, positions: int) -> Run:
    model = made_up_model(folder / "model")
    keys = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "max_position_embeddings": positions}
    (model / "config.json").write_text(str({"eos_token_id": 2, **keys}).replace("'", '"'))
    return make_run(folder, model)


def test_a_run_is_refused_before_its_first_stage_and_not_for_stages_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"engine.max_model_len = 512 is more than the 511 positions"):
        look_ahead(a_run(tmp_path / "short", 511), said.append)
    run = a_run(tmp_path / "long", 512)
    look_ahead(run, said.append)
    assert said == []
    monkeypatch.setattr("oapl_extras.plan.fitting.here", lambda: Machine((H100,) * 2, 8))
    look_ahead(run, said.append)
    assert [line.partition(" leave")[0] for line in said] == [
        "warning: engine.replicas = 1 of 1 GPU",
        "warning: training.processes = 1",
    ]


def test_what_is_recomputed_is_what_fits_and_is_shown() -> None:
    def lines(*overrides: str, machine: Machine = NODE) -> str:
        return fit(*overrides, machine=machine).lines()[-1]

    assert lines().endswith("layers are recomputed, but not their attention")
    assert lines(machine=Machine((Gpu("B200", 192e9, ""),) * 8, 128)).endswith("; 1 layer in 2 is recomputed")
    assert lines('training.recompute="all"').endswith("; layers are recomputed")
    assert lines(machine=Machine((Gpu("B300", 288e9, ""),) * 8, 128)).endswith("; activations are kept")
    kept = only(list(fit('training.recompute="none"').findings()))
    assert "activations are kept, and a GPU has 79.6" in kept.line
    assert "training.recompute = 'auto'" in kept.line


def test_larger_micro_batches_are_named_where_they_fit_a_small_model() -> None:
    small = ModelSize(0.6e9, 28, 2048, 1024, 1024, 3072, 151_936, 40_960)
    more = "training.tokens_per_micro_batch = 65536 would fit, too"
    assert more in fit('training.recompute="all"', model=small).lines()[-1]
    assert more not in fit('training.recompute="none"', model=small).lines()[-1], "it would not fit"
    assert more not in fit("training.batch_size=8", model=small).lines()[-1], "nothing would fill it"
    assert more not in fit().lines()[-1], "large models have enough to do"


def test_zero_3_makes_its_largest_layers_whole_for_a_moment() -> None:
    config = load_experiment(EXPERIMENTS / "deepcoder.toml").training
    found = rank_memory(config, FOURTEEN, 8, 36_096, GPU_TILE)
    ends, width = 152_064 * 5120, 2
    assert found.gathered == pytest.approx(width * (4 * ends + (14.77e9 - 2 * ends) / 48))
    assert found.output_layer == 8 * GPU_TILE + 12 * 36_096 * 5120 + 8 * (GPU_TILE // 4096) * 5120
    other = config.model_copy(update={"zero_stage": 2})
    assert rank_memory(other, FOURTEEN, 8, 36_096, GPU_TILE).gathered == 0


@pytest.mark.parametrize("free", [0, 10**12])
def test_a_new_run_wants_room_for_a_checkpoint_and_two_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    run = Run(tmp_path / "new", a_run(tmp_path, 512).config)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=free))
    if free:
        look_ahead(run, print)
        return
    with pytest.raises(ConfigError, match=r"a checkpoint and two states .* runs_dir"):
        look_ahead(run, print)


def test_adapters_need_room_for_their_own_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = a_run(tmp_path, 512).config
    whole = Run(tmp_path / "whole", config)
    training = config.training.model_copy(update={"adapter": AdapterConfig(rank=16)})
    adapted = Run(tmp_path / "adapted", config.model_copy(update={"training": training}))
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=200 * 10**9))
    assert [one.refuses for one in _disk(whole, FOURTEEN)] == [True]
    assert not list(_disk(adapted, FOURTEEN)), "a checkpoint of 30 GB, and states of less than 1"


def test_a_run_that_stops_before_training_needs_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "new", a_run(tmp_path, 512).config)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=0))
    monkeypatch.setattr("oapl_extras.plan.fitting.here", lambda: Machine((H100,) * 1, 8))
    crowded = run.config.training.model_copy(update={"processes": 2})
    run = replace(run, config=run.config.model_copy(update={"training": crowded}))
    with pytest.raises(ConfigError, match=r"training.processes = 2 need a GPU each, and 1 are there"):
        look_ahead(run, print)
    look_ahead(until(run, "groups"), print)


def test_an_experiment_with_a_former_setting_is_told_what_is_there_now() -> None:
    with pytest.raises(ConfigError, match=r"`training.gradient_checkpointing` is no setting: it is training.recompute"):
        load_experiment(EXPERIMENTS / "math.toml", ["training.gradient_checkpointing=true"])
    with pytest.raises(ConfigError, match=r"`training.hostfile` is no setting: .*training.launcher = 'env'"):
        load_experiment(EXPERIMENTS / "math.toml", ["training.hostfile=hosts"])
