"""Checks in Python that call a program's function from a process of their own."""
