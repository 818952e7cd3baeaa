"""Rollouts + verdicts + prompts -> 3_groups.parquet: what is trained on, with every dropped row counted by reason."""
