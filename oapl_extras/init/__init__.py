"""`oapl init`: looks at a model and at data, and writes an experiment file that runs, with the reason of each line."""
