"""The arms of the claims, by study and name. Reads and writes nothing; docs/benchmarks/claims.md says what each asks.

An arm of base B and seed S is called NAME-seedS; its results lie in DIR/B. The seed decides the order of problems and
every answer, for all arms of that seed alike.
"""

from collections.abc import Callable, Mapping

from bench.claims import bed_studies
from bench.claims.algorithm_1 import Arm
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from oapl_core.objectives.kto import Kto
from oapl_core.objectives.pairs import Dpo, Ipo
from oapl_core.objectives.reinforce import AsymRe, MaxRl
from oapl_core.objectives.supervised import Rft
from oapl_core.objectives.topr import Topr

OAPL = Oapl(regression_temperature=0.1)
GRPO = GrpoTokenIs()
"""Around the trainer of two steps before, tokens averaged over an answer: the paper's baseline."""
RATE, TUNING_SEED = 2.5e-4, 1000
RATES = (3.125e-5, 6.25e-5, 1.25e-4, RATE, 2 * RATE)
HIGHER_RATES = (4 * RATE, 8 * RATE)
AT_THE_EDGE = ("rft", "topr", "asymre")
"""Best at the highest of RATES, so that the two above were tried too."""
PASS = 90
"""Steps of one pass over 720 problems."""
OFFLINE: Mapping[str, Method] = {
    "rft": Rft(),
    "topr": Topr(),
    "asymre": AsymRe(),
    "dpo": Dpo(),
    "ipo": Ipo(),
    "kto": Kto(),
    "maxrl": MaxRl(),
    "shifted": Oapl(regression_temperature=0.1, value="beta_shifted_mean"),
}
"""What else trains on a file of groups."""


def rates_of(method: str) -> tuple[float, ...]:
    """Tried for a method of `offline`."""
    return RATES + (HIGHER_RATES if method in AT_THE_EDGE else ())


def arms(study: str, seeds: int) -> dict[str, Arm]:
    """The arms of a study, all of a seed before the next."""
    made = {**STUDIES, **bed_studies.STUDIES}[study]
    return {f"{name}-seed{seed}": one for seed in range(seeds) for name, one in made(seed).items()}


def _offline(objective: Method, seed: int, steps: int = PASS, rate: float = RATE, **settings: object) -> Arm:
    """On the base's answers to 720 problems alone."""
    training = {"learning_rate": rate}
    passes = -(-steps // PASS)
    return Arm(objective, PASS, passes, steps=steps, seed=seed, evaluate_every=PASS, training=training, **settings)  # type: ignore[arg-type]


def _collapse(seed: int) -> dict[str, Arm]:
    """One policy's rollouts, three times."""
    return {"grpo-offline": _offline(GRPO, seed, 3 * PASS), "oapl-offline": _offline(OAPL, seed, 3 * PASS)}


def _slower(seed: int) -> dict[str, Arm]:
    """The same at half the rate: whether a collapse is one of the rate."""
    return {"grpo-offline-slow": _offline(GRPO, seed, 3 * PASS, RATE / 2)}


def _pair(seed: int) -> dict[str, Arm]:
    """The paper's own pair: OAPL with a lag of up to 50 steps, GRPO off by one with two batches an update."""
    return {
        "grpo-off1": Arm(GRPO, 2, offset=2, steps=150, seed=seed),
        "oapl-lag50": Arm(OAPL, 50, steps=150, seed=seed),
    }


def _longer_lag(seed: int) -> dict[str, Arm]:
    return {"oapl-lag100": Arm(OAPL, 100, seed=seed)}


def _equal_lag(seed: int) -> dict[str, Arm]:
    """GRPO with OAPL's lag."""
    return {"grpo-lag50": Arm(GRPO, 50, steps=150, seed=seed)}


def _lags(seed: int) -> dict[str, Arm]:
    """The other equal lags. What is sampled once for 400 steps is, up to there, what is sampled once for 800."""
    methods = {"grpo": GRPO, "oapl": OAPL}
    return {
        f"{name}-lag{lag}": Arm(one, lag, steps=steps, seed=seed)
        for lag, steps in ((1, 200), (100, 200), (800, 800))
        for name, one in methods.items()
        if (name, lag) != ("oapl", 100)
    }


def _epochs(seed: int) -> dict[str, Arm]:
    """GRPO off by one with more passes over its rollouts, OAPL in two offline rounds of four."""
    more = {f"grpo-epochs{n}": Arm(GRPO, 2, n, offset=2 * n, steps=100 * n, seed=seed) for n in (2, 4)}
    rounds = {
        f"oapl-rounds{64 * fresh}": Arm(OAPL, fresh, 4, steps=8 * fresh, seed=seed, evaluate_every=4 * fresh)
        for fresh in (8, 16, 32)
    }
    return more | rounds


def _filter(seed: int) -> dict[str, Arm]:
    """Which groups are trained on; ``oapl-offline`` after its first pass is the paper's filter."""
    return {
        "oapl-all": _offline(OAPL, seed, keep="all"),
        "oapl-mixed": _offline(OAPL, seed, keep="mixed"),
    }


def _betas(seed: int) -> dict[str, Arm]:
    """beta1 and beta2 together and apart; (1, 0.1) is ``oapl-offline`` after its first pass."""
    pairs = ((0.1, 0.1), (0.3, 0.3), (1.0, 0.3), (1.0, 0.03), (0.3, 0.1))
    return {
        f"oapl-beta{one:g}-{two:g}": _offline(Oapl(value_temperature=one, regression_temperature=two), seed)
        for one, two in pairs
    }


def _tuning(_: int) -> dict[str, Arm]:
    """The rates of every offline method, chosen on the validation problems with a seed of their own."""
    methods: dict[str, Method] = {"oapl": OAPL, "grpo": GRPO, **OFFLINE}
    return {
        f"{name}-rate{rate:g}": _offline(one, TUNING_SEED, rate=rate, measured_on="validation", answers_last=8)
        for name, one in methods.items()
        for rate in rates_of(name)
    }


def _offline_methods(seed: int) -> dict[str, Arm]:
    """The others at the rate of OAPL, and all of them at the other rates: ``tuning`` says which is whose."""
    at_oapls = {f"{name}-offline": _offline(one, seed) for name, one in OFFLINE.items()}
    methods: dict[str, Method] = {"oapl": OAPL, "grpo": GRPO, **OFFLINE}
    tried = {(name, rate): _offline(one, seed, rate=rate) for name, one in methods.items() for rate in rates_of(name)}
    return at_oapls | {f"{n}-offline-rate{rate:g}": arm for (n, rate), arm in tried.items() if rate != RATE}


def _passes(seed: int) -> dict[str, Arm]:
    """Three passes over one policy's rollouts, as `collapse`, for the methods that are ahead after one."""
    return {f"{name}-passes": _offline(OFFLINE[name], seed, 3 * PASS, 2 * RATE) for name in ("rft", "topr")}


STUDIES: Mapping[str, Callable[[int], dict[str, Arm]]] = {
    "collapse": _collapse,
    "pair": _pair,
    "filter": _filter,
    "equal-lag": _equal_lag,
    "betas": _betas,
    "offline": _offline_methods,
    "passes": _passes,
    "tuning": _tuning,
    "slower": _slower,
    "longer-lag": _longer_lag,
    "epochs": _epochs,
    "lags": _lags,
}
"""In the order of what they are worth."""
