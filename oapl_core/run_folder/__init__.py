"""A run folder: where things lie in it, what its ledger says of them, who may work on it, and its mirror."""
