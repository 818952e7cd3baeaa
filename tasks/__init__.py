"""Prefect tasks: one task is one stage process. Knows retries, time limits and tags, not what a stage does."""
