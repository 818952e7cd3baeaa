"""What answers a model between its turns: tools, tasks of several steps, environments of one's own.

``protocol.py`` says what one is, ``tools.py`` makes one of plain functions, ``syntax.py`` reads calls out of a turn,
``wording.py`` makes tokens of what comes back. docs/trajectories.md.
"""
