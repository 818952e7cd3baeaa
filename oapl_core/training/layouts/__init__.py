"""How answers lie in a micro-batch: padded, packed, with shared prompts, divided among ranks."""
