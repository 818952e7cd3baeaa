"""A run's numbers to TensorBoard, Weights & Biases and MLflow while they are made: `training.trackers`.

One run of theirs for one run of ours. The trainer sends its steps as it makes them. Before the first step it sends what
the ledger knows of sampling, verification and groups. The report sends what is missing then, evaluation included.
The core finds both by name, as observers: `trackers` and `what trackers miss`.
"""
