"""Answers of others beside those that a round samples (docs/extras/guidance.md).

``with_demonstrations.py`` puts demonstrations among the rows of each group.
"""
