"""Kernels are told apart by their names, and a trace is divided into kinds without losing a microsecond."""

from typing import Any

import pytest

from bench.gpu.kernel_names import KINDS, kind
from bench.gpu.profiling import breakdown

NAMES = {
    "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT": "gemm",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off": "gemm",
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn": "gemm",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_nn_align8>": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, __nv_bfloat16, float>": "gemm",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1": "head",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4>": "head",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_sgemm": "head",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, cutlass::bfloat16_t>>": (
        "attention"
    ),
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128>>": "attention",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>": (
        "attention"
    ),
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at_": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x128x128": "attention",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80": "attention",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "elementwise",
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<BinaryFunctor>>": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>": (
        "elementwise"
    ),
    "_rms_norm_forward_kernel": "elementwise",
    "_triton_rope": "elementwise",
    "_swiglu_backward_kernel": "elementwise",
    "triton_poi_fused_add_mul_silu_3": "elementwise",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>": "elementwise",
    "void at::native::index_elementwise_kernel<128, 4>": "elementwise",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>": "elementwise",
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>": "optimiser",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor>": (
        "optimiser"
    ),
    "Memcpy HtoD (Pinned -> Device)": "copies",
    "Memcpy DtoD (Device -> Device)": "copies",
    "Memset (Device)": "copies",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>": "copies",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<OpaqueType<2u>>": "copies",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "copies",
    "some_kernel_nobody_knows": "other",
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items(), ids=[name[:40] for name in NAMES])
def test_kind(name: str, expected: str) -> None:
    assert kind(name) == expected


def test_every_kind_is_known_and_products_of_layers_in_float32_are_the_layers() -> None:
    assert set(NAMES.values()) == set(KINDS)
    assert kind("cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4", layers_in_float32=True) == "gemm"


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid}


def test_a_trace_of_a_gpu() -> None:
    events = [
        event("kernel", "nvjet_hsh", 0, 1000),
        event("kernel", "vectorized_elementwise_kernel", 500, 1000),  # in another stream, at the same time
        event("gpu_user_annotation", "head", 2000, 500),
        event("user_annotation", "optimiser", 400, 1200),  # the host's, while the GPU still computes layers
        event("kernel", "vectorized_elementwise_kernel", 2100, 300),
        event("gpu_user_annotation", "Optimizer.step#AdamW.step", 3000, 500),  # torch's own, not ours
        event("kernel", "multi_tensor_apply_kernel", 3000, 200),
        event("gpu_memcpy", "Memcpy DtoH", 4000, 100),
        event("cuda_runtime", "cudaLaunchKernel", 0, 5),
        event("cuda_driver", "cuLaunchKernelEx", 10, 5),
        event("cuda_runtime", "cudaStreamSynchronize", 20, 5),
        event("cpu_op", "aten::mm", 0, 50),
        {"ph": "M", "name": "process_name"},
    ]
    found = breakdown(events, steps=2)
    assert found["kinds_ms"] == {
        "gemm": 0.5,
        "attention": 0.0,
        "elementwise": 0.5,
        "head": 0.15,
        "optimiser": 0.1,
        "copies": 0.05,
        "other": 0.0,
    }
    assert found["busy_ms"] == 1.05
    assert (found["kernels"], found["launches"], found["synchronisations"]) == (2, 1, 0.5)
    assert next(iter(found["largest_ms"].items())) == ("vectorized_elementwise_kernel", 0.65)


def test_a_trace_of_a_cpu_counts_each_operator_without_what_it_called() -> None:
    events = [
        event("cpu_op", "aten::linear", 0, 100),
        event("cpu_op", "aten::mm", 10, 80),
        event("cpu_op", "aten::mul", 200, 10),
        event("cpu_op", "aten::mm", 0, 40, tid=2),
        event("user_annotation", "head", 300, 100),
        event("cpu_op", "aten::mul", 310, 20),
    ]
    found = breakdown(events, steps=1)
    assert found["kinds_ms"]["gemm"] == 0.14 and found["kinds_ms"]["elementwise"] == 0.01
    assert found["kinds_ms"]["head"] == 0.02
    assert found["busy_ms"] == 0.13 and found["kernels"] == 0
