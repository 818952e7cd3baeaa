"""`[sampler]`: running vLLM servers sample rollouts in the place of an engine of our own."""
