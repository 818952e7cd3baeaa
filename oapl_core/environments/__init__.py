"""Environments, which answer a model between its turns: tools, tasks of several steps, classes of one's own.

``protocol.py`` defines an environment, ``tools.py`` makes one of plain functions, ``syntax.py`` reads calls out of a
turn, ``wording.py`` makes tokens of the answers. docs/trajectories.md.
"""
