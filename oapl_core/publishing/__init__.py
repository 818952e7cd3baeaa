"""A run for others to fetch: a checkpoint, or its rollouts, as a repository of the hub with a card."""
