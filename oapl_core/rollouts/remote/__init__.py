"""Sampling by machines that do not see the run folder, through a store."""
