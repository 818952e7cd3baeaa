"""Objectives that clip or truncate importance weights."""
