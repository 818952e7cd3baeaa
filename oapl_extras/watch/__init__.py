"""`oapl watch`: a page of the newest numbers of a run, written again while it works."""
