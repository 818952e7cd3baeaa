"""The trainer and the sampler on one GPU: ``python -m bench.gpu`` says what there is."""
