"""Hurts whole runs at random and looks whether anything is lost or silently different; see ``__main__.py``."""
