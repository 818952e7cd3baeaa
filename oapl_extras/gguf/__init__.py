"""`oapl convert`: a GGUF file becomes a Hugging Face folder that a run starts from."""
