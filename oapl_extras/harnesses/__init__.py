"""`oapl evaluate --harness`: another project's harness on the same checkpoints (docs/extras/harnesses.md)."""
