"""Everything a person can choose: a module for each group, with defaults, units and sources, and the file reader."""
