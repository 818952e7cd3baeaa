"""Files that training keeps on disk: states to resume from, checkpoints and their check."""
