"""OAPL post-training, without the orchestration: sample, verify, group, train, evaluate, report.

Every station of the data's path is a package with one verb module (``python -m oapl_core.<stage>.<verb> RUN_DIR``);
stations talk to each other through the Parquet files described in ``tables.py``, never through imports.
Five packages are what they stand on, each built on those after it: ``comparing``, ``changing``, ``planning``,
``run_folder``, ``settings``. The modules beside them serve all.
"""

__version__ = "0.1.0"
