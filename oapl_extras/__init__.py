"""Everything that a round works without, a folder each: code, commands, and an ``__init__`` that says what it is for.

The core (``oapl_core``, ``tasks``, ``flows``, ``deployments``) never imports an extra: it looks names up
(``oapl_core/plugins``). An extra imports the core's public names and no other extra. import-linter checks both.
"""
