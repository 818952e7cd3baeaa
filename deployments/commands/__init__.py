"""The commands of `oapl`, one file each: its options and what it does. cli.py imports the one that was called."""
