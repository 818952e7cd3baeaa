"""A test bed that is no toy: three families of problems in one mixture, and a model made from nothing for them.

docs/benchmarks/mixture.md has its design, its gates and its commands. `search.py`, `dependencies.py` and `programs.py`
are the families, `scales.py` says how large everything is, `sets.py` writes the problem sets.
"""
