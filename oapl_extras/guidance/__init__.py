"""Answers of others beside those that a round samples (docs/extras/guidance.md).

``with_demonstrations.py`` puts demonstrations among the rows of each group. ``demonstrated_prefixes.py`` has answers to
unsolved problems begin with the beginning of one.
"""
