"""`oapl plan`: hours, memory, disk and warnings of a run before it starts."""
