"""Several objectives side by side on one run's rollouts: the folder, its arms, and how a comparison begins."""
