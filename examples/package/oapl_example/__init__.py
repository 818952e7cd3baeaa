"""Examples of what a package can add to OAPL; each module is one kind (docs/plugins.md)."""
