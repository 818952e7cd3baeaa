"""Filters of a person's own: a function that says of a problem's answers which are not trained on (docs/filters.md)."""
