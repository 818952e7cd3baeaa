"""`oapl prove`: a ladder of small proofs that this machine samples, scores and trains as the tests say."""
