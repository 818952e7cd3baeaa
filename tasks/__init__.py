"""Prefect tasks: one task is one stage process. Knows retries, time limits and tags; knows nothing of what a stage does."""
