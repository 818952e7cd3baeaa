"""Attacks on the verifier: strategies that earn a reward without solving a problem (docs/benchmarks/attacks.md)."""
