"""Before the first stage: can it end on these machines? What cannot work is refused, what may be slow is said.

Reads the sizes of the model and of the machine (its GPUs, cores, disk); writes nothing. A run is refused only if
arithmetic rules it out whatever is uncertain. Stages that run elsewhere, on servers, a fleet or other hosts, are
compared with the model alone. Where no GPU is, nothing is compared with GPUs.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from oapl_core.devices import CORES_PER_GPU, Gpu, visible_gpus
from oapl_core.errors import ConfigError
from oapl_core.files import readable_size
from oapl_core.planning.memory import MemoryEstimate, rank_memory, trained_weights
from oapl_core.planning.model_size import ModelSize
from oapl_core.planning.plan import Step, finished, wanted
from oapl_core.planning.stages import EVALUATION, SAMPLING, TRAINING
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.training import GPU_TILE, OPTIMISER_BYTES, state_remedies
from oapl_core.token_columns import column
from oapl_extras.plan.engine_memory import (
    EngineMemory,
    bytes_beside,
    context,
    engine_memory,
    longest_sequence,
    planned_training,
)
from oapl_extras.plan.known_size import known_size

_FEW_ANSWERS = 32
"""At once in an engine: fewer read the weights for too little."""
_GIB = 2**30
_SMALL, _LARGE_MICRO_BATCH = 2e9, 65536
"""Weights of a model whose micro-batches may be larger than usual, and tokens of such a one."""


@dataclass(frozen=True)
class Obstacle:
    """One thing that does not fit."""

    line: str
    refuses: bool = False
    """Whether it cannot work."""


@dataclass(frozen=True)
class Machine:
    """Machine, as far as settings must fit it."""

    gpus: tuple[Gpu, ...]
    cores: int | None
    """Cores that this process may use; None: not known."""
    host_bytes: float = inf


def here() -> Machine:
    """Describe this machine, as this process may use it: Slurm and containers allow less than there is."""
    # the limits of a container's control group are not asked: too much is promised there, and nothing refused wrongly
    host = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return Machine(visible_gpus(), len(os.sched_getaffinity(0)), host)


def planned(experiment: Experiment) -> Machine:
    """Return the GPUs that `[estimate]` names; where it names none, its default, unless the run is meant for CPUs.

    A run for CPUs has a model of `[pretrain]`, or is planned where no GPU is.
    """
    assumed = experiment.estimate
    is_for_gpus = "gpus" in assumed.model_fields_set or (here().gpus and not experiment.pretrain)
    gpus = assumed.gpus if is_for_gpus else 0
    return Machine((Gpu("planned", assumed.gpu_gb * 1e9, ""),) * gpus, cores=None)


def largest(config: Experiment) -> Experiment:
    """Return the settings of the round that needs the most memory.

    Of those with the longest answers it is the first whose objective keeps the most beside the weights.
    """
    every = map(config.of_round, range(len(config.rounds)))
    return max(every, key=lambda one: (one.sampling.max_tokens, bytes_beside([one.objective])))


def look_ahead(run: Run, tell: Callable[[str], None]) -> None:
    """Refuse what the steps that are left cannot do on this machine; tell what they may do slowly.

    The core finds it by the name `fit` of observers: it looks once, and needs to be told nothing later.

    Raises:
        ConfigError: one line with what to set.
    """
    # a run that has begun has what it wrote on the disk, and asks for room stage by stage
    is_new = not (run.root / "run.json").exists()
    # a stage that is done needs nothing any more: what was sampled elsewhere may be trained here
    every = wanted(run)
    left = every if is_new else every[len(finished(run)) :]
    model = run.config.model
    placed = (
        run.config
        if model is None or run.config.hub_model
        else run.config.model_copy(update={"model": run.place(model)})
    )
    known = known_size(placed)
    fit = Fit(largest(run.config), known[0] if known else None, here(), tuple(left))
    # who wants rollouts alone has no checkpoint to write
    trains = any(step.verb == TRAINING.verb for step in left)
    found = [*fit.findings(), *(_disk(run, fit.model) if is_new and trains else ())]
    for one in found:
        if one.refuses:
            raise ConfigError(one.line)
    for one in found:
        tell(f"warning: {one.line}")


@dataclass(frozen=True)
class Fit:
    """An experiment, its model (None: not known yet) and the machine that its steps would run on."""

    config: Experiment
    model: ModelSize | None
    machine: Machine
    left: Sequence[Step] | None = None
    """Steps that are to be done; None: all."""

    def lines(self) -> list[str]:
        """Describe the memory that a GPU would hold, or that an engine on CPUs holds."""
        if not self.machine.gpus:
            held = f"engine.kv_cache_gib = {self.config.engine.kv_cache_gib:g} GiB for keys and values"
            return [f"planned for CPUs, but for the hours: {held}; estimate.gpus=N plans for N GPUs"]
        engine, rank = self.engine, self.rank
        room = engine and engine.tokens / context(self.config, self._answer_tokens, self.config.sampling.max_tokens)
        most = self.config.engine.at_once(self.model.parameters) if self.model else 0
        at_once = f", {min(room, most):,.0f} of at most {most:,} answers at once" if room and room > 0 else ""
        shown = [engine and engine.line() + at_once, rank and rank.line() + self._larger(rank)]
        return [line for line in shown if line]

    def findings(self) -> Iterator[Obstacle]:
        """Yield the obstacles of a run that does not fit, refusals first."""
        found = [*self._positions(), *self._columns(), *self._sampling(), *self._training(), *self._together()]
        yield from sorted(found, key=lambda one: not one.refuses)

    @property
    def engine(self) -> EngineMemory | None:
        """Memory of one replica on the smallest GPU; None where there is none, or servers sample."""
        gpus = self._engine_gpus()
        if self.model is None or not gpus or not self._does(SAMPLING.verb, EVALUATION.verb):
            return None
        return engine_memory(self.config.engine, self.model, min(gpu.bytes for gpu in gpus))

    @property
    def rank(self) -> MemoryEstimate | None:
        """Memory of one rank; None where there are no GPUs, or other machines train."""
        if self.model is None or not self._trainer_gpus() or not self._does(TRAINING.verb):
            return None
        training = planned_training(self.config, self.model, self._ranks, self._gpu_bytes, [self.config.objective])
        longest, beside = longest_sequence(self.config), bytes_beside([self.config.objective])[0]
        return rank_memory(training, self.model, self._ranks, longest, GPU_TILE, beside=beside)

    def _larger(self, rank: MemoryEstimate) -> str:
        """Tell of a small model, whose steps are short, that larger micro-batches fit as well as those of ``rank``."""
        assert self.model, "there is a rank"
        given = self.config.training.tokens_per_micro_batch
        if self.model.parameters > _SMALL or given >= _LARGE_MICRO_BATCH:
            return ""
        larger = self.config.training.model_copy(update={"tokens_per_micro_batch": _LARGE_MICRO_BATCH})
        config = self.config.model_copy(update={"training": larger})
        training = planned_training(config, self.model, self._ranks, self._gpu_bytes, [config.objective])
        longest, beside = longest_sequence(config), bytes_beside([config.objective])[0]
        found = rank_memory(training, self.model, self._ranks, longest, GPU_TILE, beside=beside)
        if found.activations == rank.activations or found.recompute != rank.recompute or found.most > self._gpu_bytes:
            return ""
        return f"; training.tokens_per_micro_batch = {_LARGE_MICRO_BATCH} would fit, too ({found.total / _GIB:.2g} GiB)"

    @property
    def _gpu_bytes(self) -> float:
        """Memory of the smallest GPU that trains."""
        return min(gpu.bytes for gpu in self._trainer_gpus())

    @property
    def _ranks(self) -> int:
        training = self.config.training
        return len(self.machine.gpus) if training.has_nodes else training.processes

    @property
    def _answer_tokens(self) -> float:
        return min(self.config.estimate.answer_tokens, self.config.sampling.max_tokens)

    def _does(self, *verbs: str) -> bool:
        """Tell whether one of these is left to be done on this machine; of a plan, on any."""
        config = self.config
        here = {verb for verb in verbs if verb == TRAINING.verb or config.engine_gpus(verb)}
        if self.left is None:
            return bool(here)
        elsewhere = {verb for verb in verbs if config.is_elsewhere(verb)}
        elsewhere |= {TRAINING.verb} if config.training.has_nodes else set()
        return bool({step.verb for step in self.left} & (here - elsewhere))

    def _chosen(self, numbers: Sequence[int]) -> Sequence[Gpu]:
        gpus = self.machine.gpus
        return [gpus[number] for number in numbers if number < len(gpus)] if numbers else gpus

    def _engine_gpus(self) -> Sequence[Gpu]:
        return self._chosen(self.config.pipeline.engine_gpus if self.config.pipeline else ())

    def _trainer_gpus(self) -> Sequence[Gpu]:
        return self._chosen(self.config.pipeline.trainer_gpus if self.config.pipeline else ())

    def _positions(self) -> Iterator[Obstacle]:
        engine = self.config.engine
        is_allowed = "hf_overrides" in engine.options or os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
        if self.model is None or is_allowed or engine.max_model_len <= self.model.positions:
            return
        yield Obstacle(
            f"engine.max_model_len = {engine.max_model_len} is more than the {self.model.positions:.0f} positions of "
            "the model: lower it, and problems.max_prompt_tokens, sampling.max_tokens, evaluation.max_tokens with it",
            refuses=True,
        )

    def _columns(self) -> Iterator[Obstacle]:
        if not self.model or self.config.estimate.model_parameters is not None:
            return  # what a person states may leave out what decides
        has = [one.name for one in self.model.columns]
        for one in map(column, self.config.sampling.columns):
            if one.name not in has:
                what = f"sampling.{one.name} is for {one.models}, and the model {one.lacks}: leave it out"
                yield Obstacle(what, refuses=True)

    def _sampling(self) -> Iterator[Obstacle]:
        config, gpus = self.config.engine, len(self._engine_gpus())
        gpus //= self.config.shares(SAMPLING.verb) if self.left is None else 1  # a plan is of all machines
        if not gpus or not self._does(SAMPLING.verb, EVALUATION.verb) or config.distributed_executor_backend == "ray":
            return
        each = config.gpus
        used = each * config.replicas
        what = f"engine.replicas = {config.replicas} of {each} GPU{'s' * (each > 1)}"
        if used > gpus:
            yield Obstacle(
                f"{what} need {used} GPUs, and {gpus} are there: lower engine.replicas or what shares one", True
            )
        elif gpus // each > config.replicas:
            yield Obstacle(
                f"{what} leave {gpus - used} of {gpus} GPUs idle: engine.replicas = {gpus // each} uses them"
            )
        memory = self.engine
        if memory is None:
            return
        limit = f"engine.gpu_memory_utilization = {config.gpu_memory_utilization:g}"
        # vLLM itself asks for one sequence of the longest kind, and more than that for its own use
        if memory.tokens < config.max_model_len:
            holds = f"keys and values of {max(0.0, memory.tokens):,.0f} tokens"
            yield Obstacle(
                f"an engine on {each} GPU{'s' * (each > 1)} holds {readable_size(memory.weights)} of weights and, by "
                f"{limit}, {holds}, fewer than engine.max_model_len = {config.max_model_len}: "
                "raise engine.tensor_parallel_size, or lower engine.max_model_len with the limits in it",
                refuses=True,
            )
            return
        at_once = memory.tokens / context(self.config, self._answer_tokens, self.config.sampling.max_tokens)
        if at_once < min(_FEW_ANSWERS, config.max_num_seqs or _FEW_ANSWERS):
            yield Obstacle(
                f"an engine has room for {at_once:.0f} answers of {self._answer_tokens:,.0f} tokens at once (estimate."
                f"answer_tokens), fewer than {_FEW_ANSWERS} are slow: engine."
                f"tensor_parallel_size = {2 * each} would share the weights"
            )

    def _training(self) -> Iterator[Obstacle]:
        training, gpus = self.config.training, self._trainer_gpus()
        if not gpus or not self._does(TRAINING.verb):
            return
        ranks = f"training.processes = {self._ranks}"
        if self._ranks > len(gpus):
            yield Obstacle(f"{ranks} need a GPU each, and {len(gpus)} are there: lower it", True)
        elif self._ranks < len(gpus):
            yield Obstacle(f"{ranks} leaves {len(gpus) - self._ranks} of {len(gpus)} GPUs idle")
        memory, there = self.rank, self._gpu_bytes
        if memory is None:
            return
        needs = f"{memory.line()}, and a GPU has {there / _GIB:.3g}, 1 of them for the process"
        # what a step holds beside its states can be cut smaller, so other settings are named for the one and the other
        if memory.states + _GIB > there:
            yield Obstacle(f"{needs}: {state_remedies(training)}", refuses=True)
        elif memory.total + _GIB > there:
            lower = f"a lower training.tokens_per_micro_batch (now {training.tokens_per_micro_batch})"
            lower += ", training.recompute = 'auto'" if training.recompute not in ("auto", "all") else ""
            yield Obstacle(f"{needs}: {lower}, {state_remedies(training)}", refuses=memory.least > there)
        held = memory.host * training.processes
        if held > self.machine.host_bytes:
            host = readable_size(self.machine.host_bytes)
            yield Obstacle(
                f"training.offload_optimizer needs {readable_size(held)} on this host, which has {host}", True
            )

    def _together(self) -> Iterator[Obstacle]:
        config, gpus, cores = self.config, len(self.machine.gpus), self.machine.cores
        pipeline = config.pipeline
        if pipeline and gpus and self._does(SAMPLING.verb) and self._does(TRAINING.verb):
            wanted = {*pipeline.engine_gpus, *pipeline.trainer_gpus}
            if missing := sorted(number for number in wanted if number >= gpus):
                yield Obstacle(f"[pipeline] names GPU {missing[0]}, and {gpus} are there, counted from 0", True)
            shared = set(pipeline.engine_gpus) & set(pipeline.trainer_gpus)
            if shared or not pipeline.engine_gpus or not pipeline.trainer_gpus:
                yield Obstacle(
                    "[pipeline] lets engine and trainer share GPUs, whose memory the engine takes: give each its own, "
                    "pipeline.engine_gpus and pipeline.trainer_gpus",
                    True,
                )
        if cores is not None and cores < CORES_PER_GPU * gpus:
            yield Obstacle(
                f"{cores} cores for {gpus} GPUs starve engines and trainers: give the job {CORES_PER_GPU} a GPU or more"
                f" (Slurm: --cpus-per-task={CORES_PER_GPU * gpus}, for srun again)"
            )


def _disk(run: Run, model: ModelSize | None) -> Iterator[Obstacle]:
    """Compare the disk with the least that a new run writes: a checkpoint and two states of its training."""
    if model is None:
        return
    width = 2 if run.config.training.dtype == "bfloat16" else 4
    state = trained_weights(run.config.training, model) * (OPTIMISER_BYTES + bytes_beside(run.config.objectives)[1])
    needed = model.parameters * width + 2 * state
    folder = next(path for path in (run.root, *run.root.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        yield Obstacle(
            f"{run.root}: a checkpoint and two states of the training need {readable_size(needed)} on the disk, "
            f"{readable_size(free)} are free; free some, or choose another disk with runs_dir=...",
            refuses=True,
        )
