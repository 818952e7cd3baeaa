"""Prefect flows: the order of the stages, nothing else."""
