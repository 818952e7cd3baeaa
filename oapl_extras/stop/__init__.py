"""`[stop]`: budgets and rules that end a run, and its costs so far (docs/extras/stop.md)."""
