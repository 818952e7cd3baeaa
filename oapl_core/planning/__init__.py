"""Before anything runs: the steps of a run, what it will make and cost, and whether a stage has what it needs."""
