"""Parts of an optimiser step that some objectives need, each found by its name (`plugins`, kind "training")."""
