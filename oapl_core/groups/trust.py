"""Facts about the sampling itself in a round's rows, before anything is trained on them; pure.

They answer three questions. Is every sample there? How many were cut at the length limit? How many repeat another of
their group token for token (a sampler that forgot its seeds, or a policy that has collapsed)?
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

UNKNOWN = "unknown"
"""``logprobs_mode`` and ``finish_reason`` of imported rollouts whose sampler did not record them."""


def sampling_facts(keys: "pl.DataFrame", problems: int, group_size: int) -> dict[str, Any]:
    """Count samples that are missing, cut, repeated or unknown.

    Args:
        keys: one row per rollout: problem_id, finish_reason, response_hash (equal ids, equal hash), logprobs_mode.
        problems: how many problems the round should have answered.
        group_size: G, how many answers each should have.

    Returns:
        Counts for the ledger.

        duplicates          rollouts less the different responses of each group
        missing_samples     rows that whole groups would have more, problems without any row included
        incomplete_groups   problems with one or more missing
        without_logprobs    imported rows whose sampler's log-probs nobody recorded
    """
    import polars as pl

    groups = keys.group_by("problem_id").agg(pl.len().alias("rows"), pl.col("response_hash").n_unique().alias("kinds"))
    incomplete = groups.filter(pl.col("rows") < group_size)
    # An imported round may answer more problems than the experiment asks for; then none is unanswered.
    unanswered = max(0, problems - len(groups))
    truncated = int((keys["finish_reason"] == "length").sum())
    duplicates = len(keys) - int(groups["kinds"].sum())
    return {
        "expected_samples": problems * group_size,
        "missing_samples": (unanswered + len(incomplete)) * group_size - int(incomplete["rows"].sum()),
        "incomplete_groups": unanswered + len(incomplete),
        "truncated": truncated,
        "truncated_share": truncated / max(1, len(keys)),
        "duplicates": duplicates,
        "duplicate_share": duplicates / max(1, len(keys)),
        "without_logprobs": int((keys["logprobs_mode"] == UNKNOWN).sum()),
    }
