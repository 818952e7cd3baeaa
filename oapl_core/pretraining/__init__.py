"""Makes the demo's tiny base model: its tokenizer and a Qwen-type LM, trained on partly wrong solutions."""
