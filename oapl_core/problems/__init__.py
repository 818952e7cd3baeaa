"""Problem sets and the prompts made of them: the first station of the path (problems.parquet, prompts.parquet)."""
