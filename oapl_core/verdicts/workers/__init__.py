"""Processes that judge beside the verifier: maths answers and functions of a person's own."""
