"""`[reward.judge]`: a language model judges answers; its canaries, replies and rubrics (docs/rewards.md)."""
