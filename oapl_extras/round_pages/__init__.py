"""Rollouts for a person to read: a page for each round of a report, and `oapl rollouts`."""
