"""Changes by a person to a run that was begun: delete files, make stages again, fork another run from it."""
