"""The evaluation card: all that repeats an evaluation, its results, and whether a repetition agrees with it."""
