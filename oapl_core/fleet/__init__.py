"""Processes that do a step together: those of other machines, and further ones on this."""
