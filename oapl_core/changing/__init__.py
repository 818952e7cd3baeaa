"""What a person does to a run that was begun: let go of files, make stages again, fork another run from it."""
