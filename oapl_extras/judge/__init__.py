"""`[reward.judge]`: a language model judges answers; its canaries, replies and rubrics (docs/extras/judge.md)."""
