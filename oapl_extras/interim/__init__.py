"""Evaluation during the run (`evaluation.every_rounds`): a stage after rounds (docs/extras/interim.md)."""
