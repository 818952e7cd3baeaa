"""The model that is trained: loading it, its kernels, adapters, experts, log-probs and memory."""
