"""Pages of a single round: its summary and a sample of its rollouts."""
