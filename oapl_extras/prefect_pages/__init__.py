"""Prefect's pages of a run: artifacts, assets and events of alarms, each an observer that flows find by name."""
