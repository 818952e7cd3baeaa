"""Routes replayed: the trainer sends tokens to the experts that a groups file says, and computes the rest as ever."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.routes import Routing
from oapl_core.run_folder.run import Run
from oapl_core.token_columns import columns_of
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.job import make_job
from oapl_core.training.layouts.shared_prompts import SharedPromptPolicy
from oapl_core.training.mismatch import compare_with_engine
from oapl_core.training.model.checkpoint import load_model
from oapl_core.training.model.experts import routers
from oapl_core.training.model.loading import load
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.model.replayed_routes import RoutingReplay
from tests.core.training.made_round import made_groups, make_run, train_in_a_process
from tests.core.training.test_mismatch import CountingEngine, measured
from tests.family_models import write_family
from tests.tiny_model import write_tiny_model

SPARSE = ("qwen3-moe", "qwen3-next", "mixtral", "gpt-oss", "deepseek-v3")
PROMPT, LENGTH = torch.tensor([2, 3, 4]), torch.tensor([20, 12, 17])
IDS = torch.arange(60).reshape(3, 20) * 7 % 300
Row = dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("families")

    def folder(family: str) -> Path:
        return root / family if (root / family).exists() else write_family(root / family, family)

    return folder


def routing(folder: Path) -> Routing:
    found = columns_of(folder)["routes"]
    assert isinstance(found, Routing)
    return found


def replaying(folder: Path, packed: bool = False) -> Policy:
    policy = Policy(load_model(folder).model, packed=packed)
    policy.holders = (RoutingReplay(policy.model, routing(folder)),)
    return policy


def chosen(policy: Policy, folder: Path, *inputs: Any) -> Tensor:
    """[tokens, layers, top_k]: what the routers choose, of the tokens as the model is given them; 0 without experts."""
    found: dict[Any, Tensor] = {}
    hooks = [r.register_forward_hook(lambda m, _, out: found.__setitem__(m, out[2])) for r in routers(policy)]
    with torch.no_grad():
        policy(*inputs)
    for hook in hooks:
        hook.remove()
    names = {module: name for name, module in policy.named_modules()}
    tokens = len(next(iter(found.values())))
    routes = torch.zeros(tokens, routing(folder).layers, routing(folder).top_k, dtype=torch.int16)
    for router, index in found.items():
        routes[:, int(names[router].split("layers.")[1].split(".")[0])] = index.to(torch.int16)
    return routes


def own_routes(policy: Policy, folder: Path) -> Tensor:
    """[S, T, layers, top_k] of the rows above; last tokens and padding have none."""
    routes = chosen(policy, folder, IDS, PROMPT, LENGTH).view(*IDS.shape, routing(folder).layers, -1)
    routes[torch.arange(IDS.shape[1]) >= LENGTH[:, None] - 1] = -1
    return routes


def shifted(routes: Tensor, folder: Path) -> Tensor:
    other: Tensor = torch.where(routes < 0, routes, (routes + 1) % routing(folder).experts)
    return other


@pytest.mark.slow_if(case=lambda given: given["family"] not in ("qwen3-moe", "deepseek-v3"))
@pytest.mark.parametrize("family", SPARSE)
def test_own_routes_change_no_bit_and_others_do(family: str, written: Callable[[str], Path]) -> None:
    folder, policy = written(family), replaying(written(family))
    own = own_routes(policy, folder)
    other = shifted(own, folder)
    plain, replayed, elsewhere, again = (policy(IDS, PROMPT, LENGTH, given) for given in (None, (own,), (other,), None))
    assert torch.equal(replayed, plain)
    assert torch.equal(again, plain), "routes are of one forward pass"
    assert (elsewhere - plain).abs().max() > 0.1
    elsewhere.sum().backward()
    for router in routers(policy):
        assert dict(router.named_parameters())["weight"].grad is not None, "gates are the router's own"
    assert torch.equal(chosen(policy, folder, IDS, PROMPT, LENGTH, (other,))[0, 1], other[0, 0, 1])


def by_hand(block: Any, hidden_TD: Tensor, stored_TK: Tensor) -> "np.ndarray[Any, Any]":
    """A block of Qwen3-MoE in NumPy: the gates of the stored experts, normalised, times what these make of a token."""
    x, gate = hidden_TD.double().numpy(), block.gate.weight.detach().double().numpy()
    up, down = (getattr(block.experts, name).detach().double().numpy() for name in ("gate_up_proj", "down_proj"))
    logits = x @ gate.T
    softmax = np.exp(logits - logits.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    output = np.zeros_like(x)
    for t, experts in enumerate(stored_TK.tolist()):
        gates = softmax[t, experts] / softmax[t, experts].sum()
        for expert, factor in zip(experts, gates, strict=True):
            first, second = np.split(up[expert] @ x[t], 2)
            output[t] += factor * (down[expert] @ (first / (1 + np.exp(-first)) * second))
    return output


def test_a_block_of_experts_is_what_numpy_makes_of_the_stored_ones(written: Callable[[str], Path]) -> None:
    policy, draw = replaying(written("qwen3-moe")), torch.Generator().manual_seed(0)
    block = policy.model.base_model.layers[1].mlp
    hidden_TD = torch.randn(30, 128, generator=draw)
    stored_TK = torch.stack([torch.randperm(8, generator=draw)[:2] for _ in range(30)])
    policy.hold((torch.stack([stored_TK.flip(0), stored_TK], dim=1)[None],), None)
    with torch.no_grad():
        found = block(hidden_TD[None])[0].numpy()
    assert np.allclose(found, by_hand(block, hidden_TD, stored_TK), rtol=1e-4, atol=1e-5)
    assert not np.allclose(found, by_hand(block, hidden_TD, stored_TK.flip(0)), atol=1e-2), "each layer has its own"


def gradients(policy: Policy, *routes: Tensor) -> dict[str, Tensor]:
    policy.zero_grad()
    policy(IDS, PROMPT, LENGTH, routes).square().sum().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("how", ["packed", "recomputed"])
def test_packing_and_recomputation_replay_the_same(how: str, written: Callable[[str], Path]) -> None:
    folder = written("qwen3-moe")
    padded, other = replaying(folder), replaying(folder, packed=how == "packed")
    routes = shifted(own_routes(padded, folder), folder)
    if how == "recomputed":
        other.model.gradient_checkpointing_enable({"use_reentrant": False})
        other.model.train()
    expected, found = gradients(padded, routes), gradients(other, routes)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-4), name
    gate = "model.model.layers.0.mlp.gate.weight"
    assert not torch.allclose(gradients(padded)[gate], expected[gate], rtol=1e-3, atol=1e-4)


def test_answers_that_share_their_prompt_share_its_routes(written: Callable[[str], Path]) -> None:
    folder, one, ids = written("qwen3-moe"), torch.full((3,), 3), IDS.clone()
    padded, shared = replaying(folder), SharedPromptPolicy(load_model(folder).model)
    shared.holders = (RoutingReplay(shared.model, routing(folder)),)
    routes = shifted(own_routes(padded, folder), folder)
    ids[:, :3], routes[:, :3] = ids[0, :3].clone(), routes[0, :3].clone()
    with torch.no_grad():
        expected = padded(ids, one, LENGTH, (routes,))
        found, without = (shared(ids, one, LENGTH, given) for given in ((routes,), None))
    assert torch.allclose(found, expected, atol=1e-4)
    assert not torch.allclose(found, without, atol=1e-2)


# From a groups file ---------------------------------------------------------------------------------------------------


def perturbed(folder: Path, to: Path) -> Path:
    """The same model but for the last digits of its routers: the engine whose rounding sends tokens elsewhere."""
    stored = load_model(folder)
    with torch.no_grad():
        for router in routers(stored.model):
            weight = dict(router.named_parameters())["weight"]
            weight.add_(
                0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * weight.abs().mean()
            )
    stored.model.save_pretrained(to)
    return to


def routed_groups(folder: Path, sampling: Path) -> list[Row]:
    """Rows of tables.GROUPS that the model in ``sampling`` has scored and routed, in the name of the one in
    ``folder``."""
    rows, policy = made_groups(sampling), Policy(load_model(sampling).model)
    for row in rows:
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        lengths = torch.tensor([len(row["prompt_ids"])]), torch.tensor([ids.shape[1]])
        routes = chosen(policy, sampling, ids, *lengths)[:-1]
        row |= {"policy_hash": policy_hash(folder), "routes": routes.numpy().astype("uint8").tobytes()}
    return rows


def write(run: Run, rows: list[Row], routed: bool = True) -> None:
    kept = [{k: v for k, v in row.items() if routed or k != "routes"} for row in rows]
    with run.writing(run.groups(0), {}, {}) as draft:
        draft.rows = tables.write_table(
            draft.path, tables.GROUPS, [{"correct": row["reward"] >= 1, **row} for row in kept]
        )


def read(run: Run, folder: Path) -> Examples:
    return read_examples(run.groups(0), policy_hash(folder), folder)


def test_the_mismatch_is_smaller_where_the_engine_chose_otherwise(
    written: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = written("qwen3-moe")
    rows = routed_groups(folder, perturbed(folder, tmp_path / "engine"))
    mismatch = {}
    for routed in (True, False):
        run = make_run(tmp_path / str(routed), folder, max_mismatch=9.0)
        write(run, rows, routed)
        engine = CountingEngine(replaying(folder), run.config.training)
        compare_with_engine(make_job(run, 0), engine, read(run, folder))
        mismatch[routed] = measured(run)[1]["mean"]
    assert 0 < mismatch[True] < mismatch[False] / 2
    print(mismatch)


@pytest.mark.parametrize(
    "spoil",
    [lambda stored: stored[:-1], lambda stored: b"\x08" + stored[1:], lambda _: b"", lambda _: None],
    ids=["cut", "an expert that does not exist", "empty", "null beside others"],
)
def test_routes_that_are_not_of_this_model_are_refused(
    spoil: Callable[[bytes], bytes | None], written: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, run = written("qwen3-moe"), make_run(tmp_path, written("qwen3-moe"))
    rows = routed_groups(folder, folder)
    rows[3] |= {"routes": spoil(rows[3]["routes"])}
    write(run, rows)
    with pytest.raises(DataError, match=r"rollout r0-3 has not the routes of each token .* \(1 such rows\)"):
        read(run, folder)


def test_what_cannot_replay_is_refused(written: Callable[[str], Path], tmp_path: Path) -> None:
    folder, run = written("qwen3-moe"), make_run(tmp_path, written("qwen3-moe"), sequence_parallel=2, processes=2)
    write(run, routed_groups(folder, folder))
    with pytest.raises(ConfigError, match=r"`training.sequence_parallel` = 2: stored routes .* set it to 1"):
        load(make_job(run, 0), read(run, folder))
    dense = load_model(write_tiny_model(tmp_path / "dense")).model
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM has 0 blocks of experts and 0 routers"):
        RoutingReplay(dense, routing(folder))
    policy = replaying(folder)
    # a router that chooses in another way than is known
    policy.holders = (RoutingReplay(policy.model, Routing(2, 3, 8)),)
    with pytest.raises(ConfigError, match=r"layers.0.mlp.gate does not choose its 3 of 8 experts by one topk"):
        policy(IDS, PROMPT, LENGTH, (torch.zeros(3, 20, 2, 3, dtype=torch.int16),))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"zero_stage": 1}, {"zero_stage": 3}, {"zero_stage": 3, "packing": "on"}], ids=str
)
def test_two_ranks_train_the_weights_of_one(
    settings: dict[str, Any], written: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = written("qwen3-moe")
    rows = routed_groups(folder, perturbed(folder, tmp_path / "engine"))
    weights = []
    for name, given in (("one", {}), ("two", {"processes": 2, "recompute": "all", **settings})):
        run = make_run(tmp_path / name, folder, epochs=1, max_mismatch=9.0, reference="reference", **given)
        write(run, rows)
        said = train_in_a_process(run)
        assert "tokens go to the experts that the engine chose, 2 in each layer" in said
        weights.append(load_model(run.checkpoint(0, 1)).model.state_dict())
    before, gates = load_model(folder).model.state_dict(), 0.0
    for name, weight in weights[0].items():
        assert torch.allclose(weights[1][name], weight, atol=2e-5), name
        gates = max(gates, float((weight - before[name]).abs().max())) if name.endswith("gate.weight") else gates
    assert gates > 1e-4, "routers are trained"
