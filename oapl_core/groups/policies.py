"""Policies that sampled a round, as the ledger names them. Reads the ledger; writes nothing."""

from oapl_core.run_folder.recorded import named_policies
from oapl_core.run_folder.run import Run


def sampling_policies(run: Run, number: int) -> set[str]:
    """Return the policies that sampled round ``number``, by the ledger: a checkpoint's hash, or an import's names."""
    folder = f"{run.name(run.rollouts(number))}/"
    mine = [entry.details for name, entry in run.ledger.artifacts().items() if name.startswith(folder)]
    policies = {details["policy_hash"] for details in mine if "policy_hash" in details}
    return policies.union(*map(named_policies, mine))
