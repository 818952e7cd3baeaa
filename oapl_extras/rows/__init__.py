"""Rows as their owners write them: others' columns, chat messages, data sets of the hub (docs/extras/rows.md)."""
