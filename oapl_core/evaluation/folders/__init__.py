"""Evaluations of any checkpoints, each in a folder with a ledger of its own: `oapl evaluate`."""
