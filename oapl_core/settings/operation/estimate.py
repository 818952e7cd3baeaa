"""Assumptions of `oapl plan`: the settings of ``[estimate]``, with units and sources. Nothing else reads them.

These settings are guesses that a person replaces by measurements. After one round the ledger has the lengths, shares
and times of the run itself.
"""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from oapl_core.settings_group import Fraction, Settings


class EstimateConfig(Settings):
    """Sizes of what is not there yet, and how fast machines are."""

    model_parameters: PositiveFloat | None = None
    """Weights of the model, for where its folder is not there; unset: counted in the folder."""
    model_shape: dict[str, int] | None = None
    """Shape of that model by the keys of its config.json (`num_hidden_layers`, `hidden_size`, `num_attention_heads`,
    `max_position_embeddings` and so on). Unset: the usual shape of a model with so many weights."""
    train_problems: PositiveInt | None = None
    """Training problems, for where their files are not there; unset: counted in the files."""
    validation_problems: PositiveInt | None = None
    """Validation problems, for where their files are not there; unset: counted in the files."""
    heldout_problems: PositiveInt | None = None
    """Held-out problems, for where their files are not there; unset: counted in the files."""
    problem_kb: PositiveFloat = 50.0
    """Mean size of a problem with its tests, compressed, for where the files are not there. kB (a guess for 15 tests of
    long inputs; a maths problem takes 1)."""
    prompt_tokens: PositiveFloat = 500.0
    """Mean length of a prompt. Tokens (a guess)."""
    answer_tokens: PositiveFloat = 10000.0
    """Mean length of an answer, cut at max_tokens. Tokens (a guess for models that think; 10,000 is what the paper's
    regression temperature suits)."""
    answer_spread: NonNegativeFloat = 0.7
    """Standard deviation of the answers' lengths, as a share of their mean. Long answers weigh twice: they are read
    for longer, and cost the square in attention (a guess; all equally long 0, exponentially distributed 1)."""
    engine_start_s: NonNegativeFloat | None = None
    """Until an engine has loaded, compiled and captured its graphs. Seconds; unset: by oapl_extras/plan/speeds.toml."""
    kept_share: Fraction = 0.55
    """Share of the groups that have a correct answer. Paper, section 5: 418 steps of 256 sequences are 13,376 problems,
    and DeepCoder publishes 24,287."""
    verification_s: PositiveFloat = 1.0
    """Core time to judge one answer. Seconds (a guess for programs with many tests; a maths answer takes 0.01)."""
    gpu_gb: PositiveFloat = 80.0
    """Memory of a GPU. GB (H100)."""
    gpu_tb_per_s: PositiveFloat = 3.35
    """Bandwidth of a GPU's memory, which bounds decoding. TB/s (H100 SXM, data sheet)."""
    gpu_tflops: PositiveFloat = 989.0
    """Arithmetic of a GPU in bfloat16 without sparsity, which bounds training. TFLOP/s (H100 SXM, data sheet)."""
    sampling_share: Fraction | None = None
    """Share of the bandwidth that sampling reaches; unset: of the nearest model in oapl_extras/plan/speeds.toml."""
    training_share: Fraction | None = None
    """Share of the arithmetic that training reaches, recomputation included; unset: that of the nearest model and
    length of answers in oapl_extras/plan/speeds.toml."""
    gpus: PositiveInt = 8
    """GPUs that the hours are divided over and the settings are compared with. Unset, and without a GPU on this
    machine or with [pretrain]: nothing is compared with GPUs."""
