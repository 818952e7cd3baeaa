"""`training.launcher`: ranks of one training on several machines, started by srun or by each node's own start."""
