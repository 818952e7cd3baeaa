"""The GPU's card: parts by themselves, resumed, bounded; kernels by kind; the page. A tiny one whole is slow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import card
from bench.gpu.card import MENDS, PLAIN, Part, fill, lines_of, measured, parts, settings_of, tiny_parts
from bench.gpu.page import PAGE, rows, table
from bench.gpu.predicted import predict
from bench.gpu.profiling import Kernel, kind_of, shares
from oapl_core.settings.training import TrainingConfig


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>", "attention"),
        ("fmha_cutlassB_f32_aligned_64x64_k64_sm80", "attention"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimiser"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>", "elementwise"),
        ("_rms_norm_forward_kernel", "elementwise"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward", "output layer"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_kernels_that_overlap_are_idle_time_once() -> None:
    kernels = [Kernel("a_gemm", 0, 40), Kernel("add", 20, 60), Kernel("a_gemm", 100, 110)]
    assert shares(kernels, 120.0, steps=2) == {"elementwise": 0.02, "gemm": 0.025, "idle": 0.025}


def test_every_mend_is_a_setting_that_can_be_made() -> None:
    for mend in MENDS:
        settings = settings_of(mend)
        assert settings == PLAIN | MENDS[mend]
        TrainingConfig(**settings)
    for whole in (parts(), tiny_parts()):
        keys = [part.key for part in whole]
        assert len(keys) == len(set(keys))


def test_a_mend_that_this_tree_does_not_have_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MENDS, "another", {"no_such_setting": 1})
    assert measured(Part("step", {"mend": "another"}), tmp_path, 1.0) == {
        "error": "no such setting here: no_such_setting"
    }


def test_a_card_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def found(part: Part, _folder: Path, seconds: float) -> dict[str, Any]:
        asked.append(part.key)
        assert 0 < seconds <= part.seconds
        if part.given["number"] == 2 and len(asked) < 4:
            return {"error": "out of memory"}
        return {"number": part.given["number"]}

    monkeypatch.setattr(card, "measured", found)
    chosen, to = [Part("step", {"number": n}) for n in range(4)], tmp_path / "card.jsonl"
    assert fill(to, chosen[:2], 5.0, tmp_path) == 0
    with to.open("a") as file:
        file.write('{"key": "step number=2", "num')  # a kill cut it
        file.write("\n")
    assert fill(to, chosen, 0.0, tmp_path) == 2, "no time is left"
    assert fill(to, chosen, 5.0, tmp_path) == 0
    assert asked == [f"step number={n}" for n in range(4)], "each once"
    assert fill(to, chosen, 5.0, tmp_path) == 0 and len(asked) == 4
    assert fill(to, chosen, 5.0, tmp_path, again=True) == 0 and asked[4:] == ["step number=2"]
    assert [line["key"] for line in lines_of(to) if "error" in line] == []


def test_a_part_that_fails_or_runs_over_its_seconds_is_a_line(tmp_path: Path) -> None:
    failed = measured(Part("output", {"size": "no such size"}), tmp_path, 60.0)
    assert "no such size" in failed["error"]
    late = measured(Part("dispatch", {"layers": 2}), tmp_path, 0.2)
    assert late["error"] == "ran over its 0 s"


def test_a_part_of_a_tiny_model_measures(tmp_path: Path) -> None:
    work = {"size": "tiny", "length": 8, "sequences": 8}
    peer = measured(Part("peer", {**work, "budget": 64, "recompute": True}), tmp_path, 120.0)
    assert peer["tokens"] == 8 * 16 and peer["tokens_per_s"] > 0 and peer["tflops"] > 0
    output = measured(Part("output", {"size": "tiny"}), tmp_path, 120.0)
    assert output["tf32"]["error_nats"] < 1e-2


def test_the_page_has_empty_cells_for_what_nobody_measured() -> None:
    empty = rows([])
    assert "26,005 tokens/s" in empty and "| 28 % |" in empty
    line = {"key": "step size=0.6B length=10240 sequences=8 mend=together budget=32768 zero=1"}
    full = rows([{**line, "tokens_per_s": 30000.0, "tflops": 296.7}, {**line, "key": "peer size=4B", "error": "none"}])
    assert "30,000 tokens/s, 30.0%" in full and "30,000" not in empty
    assert table(PAGE.read_text(), []) == PAGE.read_text(), "python -m bench.gpu page"


def test_predictions_are_those_of_the_sizes_alone() -> None:
    before, after = predict("4B", 10240, mended=False), predict("4B", 10240, mended=True)
    assert 0.2 < before.utilisation < after.utilisation < 0.5
    assert predict("0.6B", 1024, mended=True).tokens_per_s > after.tokens_per_s


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_tiny_card_is_whole(tmp_path: Path) -> None:
    to = tmp_path / "card.jsonl"
    command = [sys.executable, "-m", "bench.gpu", "card", "--tiny", "--to", str(to), "--folder", str(tmp_path / "work")]
    subprocess.run(command, check=True, cwd=card.ROOT, timeout=1700)
    failed = {line["key"]: line["error"] for line in map(json.loads, to.read_text().splitlines()) if "error" in line}
    assert [key for key in failed if "mend=liger" not in key] == [], failed
    assert len(lines_of(to)) == len(list(tiny_parts()))
