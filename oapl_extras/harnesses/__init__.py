"""`oapl evaluate --harness`: another project's harness on the same checkpoints, beside ours (docs/harnesses.md)."""
