"""Answers that are no programs: found by a rule, and compared with golds. Found by the kind of a problem."""
