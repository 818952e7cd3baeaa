"""Filters of a person's own: a function says which answers are not trained on (docs/extras/filters.md)."""
