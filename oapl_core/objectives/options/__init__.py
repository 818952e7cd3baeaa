"""Options that any objective can have: each derives the class of the chosen objective anew, found by its key."""
