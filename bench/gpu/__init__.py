"""The trainer and the engine on one GPU, by parts and as a card of them all: ``python -m bench.gpu --help``."""
