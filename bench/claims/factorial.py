"""Which factor makes TOPR sharper than OAPL: arms that differ by one of them, each with six settings to choose from.

Every arm trains on its base's one file of rollouts. docs/benchmarks/factorial.md has the question, the criteria, which
were committed before any arm was run, and what came out. Reads and writes nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from bench.claims.side_by_side import SideArm
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from oapl_core.objectives.oapl_variant import OaplVariant
from oapl_core.objectives.supervised import Rft
from oapl_core.objectives.topr import Topr

RATES = (2.5e-4, 5e-4, 1e-3)
"""Tried with each of two temperatures."""
RATES_ALONE = tuple(1.25e-4 * 2**k for k in range(6))
"""Tried where there is no temperature: six, from 1.25e-4 to 4e-3."""
BETA2 = (0.03, 0.1)
BELOW = ((0.01, 0.3), (0.03, 0.3))
"""beta2 above w = 1 and below it."""
BETA1 = (0.3, 1.0)
CLIP = 0.2
METHODS: Mapping[str, str] = {
    "oapl": "OAPL",
    "clip": "OAPL, gradients clipped at 0.2",
    "positives": "OAPL on correct answers alone",
    "unanchored": "OAPL, no anchor on correct answers",
    "tapered": "OAPL, wrong answers tapered",
    "both": "OAPL, no anchor on correct answers, wrong ones tapered",
    "asymmetric": "OAPL, two temperatures",
    "topr-v": "TOPR with OAPL's V",
    "topr": "TOPR",
    "rft": "RFT",
    "grpo": "GRPO, token IS, on the file",
}
"""Each arm's name on the page. GRPO's ratio is clipped around the weights of two steps before."""
THREE_PASSES = ("oapl", "tapered", "topr")
"""Methods that make three passes; the others make one."""


def settings() -> Iterator[tuple[str, dict[str, Any], float, Method, float]]:
    """Method, what was chosen between, the rate, the objective and the bound of the gradient's norm."""
    variants: Mapping[str, Mapping[str, Any]] = {
        "positives": {"learns_from_bad": False},
        "unanchored": {"anchors_good": False},
        "tapered": {"divergence": "tapered"},
        "both": {"divergence": "tapered", "anchors_good": False},
    }
    for rate in RATES:
        for beta in BETA2:
            yield "oapl", {"beta2": beta}, rate, Oapl(regression_temperature=beta), 1.0
            yield "clip", {"beta2": beta}, rate, Oapl(regression_temperature=beta), CLIP
            for name, more in variants.items():
                yield name, {"beta2": beta}, rate, OaplVariant(regression_temperature=beta, **more), 1.0
        for above, below in BELOW:
            two = {"regression_temperature": above, "regression_temperature_below": below}
            made = OaplVariant.model_validate({"divergence": "asymmetric", **two})
            yield "asymmetric", {"beta2": above, "below": below}, rate, made, 1.0
        for beta in BETA1:
            yield "topr-v", {"beta1": beta}, rate, Topr(value="log_mean_exp", value_temperature=beta), 1.0
    for rate in RATES_ALONE:
        for name, objective in (("topr", Topr()), ("rft", Rft()), ("grpo", GrpoTokenIs())):
            yield name, {}, rate, objective, 1.0


def arms() -> list[SideArm]:
    """Every method with every setting, by name: METHOD, temperatures, rate."""
    found = []
    for method, chosen, rate, objective, bound in settings():
        name = " ".join([method, *(f"{key}={value:g}" for key, value in chosen.items()), f"rate={rate:g}"])
        found.append(SideArm(name, objective, rate, bound))
    return found
