"""How runs are started: the `oapl` command line and the experiments that ship with the project."""
