"""What a kernel does, from its name: cuBLAS, cuDNN, CUTLASS, FlashAttention, Triton and torch differ."""

import re

KINDS = ("gemm", "attention", "elementwise", "head", "optimiser", "copies", "other")
_NAMES = (  # the first that is found counts
    ("attention", r"flash|fmha|sdpa|scaled_dot_product|attention"),
    ("optimiser", r"adam|multi_tensor_apply|lpnorm"),
    ("copies", r"memcpy|memset|nccl|direct_copy|copy_device_to_device|batchedcopy|aten::copy_|aten::cat$"),
    # the layers' products are of 16 bits, so one in TF32 or float32 is the output layer's
    ("head", r"tf32|s1688gemm|sgemm"),
    ("gemm", r"gemm|nvjet|splitkreduce|cublas|cutlass|xmma|triton_\w*mm\b|aten::(add)?mm|aten::bmm|aten::linear$"),
    (
        "elementwise",
        r"elementwise|reduce|softmax|norm|rope|rotary|swiglu|silu|triton_(poi|red|per)|index|gather|scatter|embedding"
        r"|roll|cumsum|fill|arange|where|sort|scan|aten::\w+$",
    ),
)
_PATTERNS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _NAMES]


def kind(name: str, layers_in_float32: bool = False) -> str:
    """One of KINDS; where layers compute in float32 their products have names of the head's."""
    found = next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")
    return "gemm" if found == "head" and layers_in_float32 else found
