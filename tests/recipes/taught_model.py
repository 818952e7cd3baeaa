"""A tiny model that was taught to say a few things, so that a recipe's answers are right, wrong and call tools.

It is what `[pretrain]` makes, taught on prompts as the recipe's run writes them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from oapl_core.pretraining.model import Example, new_model, train_model
from oapl_core.pretraining.tokenizer import train_tokenizer
from oapl_core.settings.pretrain import PretrainConfig

Turns = list[dict[str, str]]


def asked(words: str) -> Turns:
    """A conversation of one question."""
    return [{"role": "user", "content": words}]


def write_taught_model(
    folder: Path, said: Sequence[tuple[Turns, Sequence[str]]], has_chat: bool = True, steps: int = 250
) -> Path:
    """Write a model of 0.3 million parameters that gives each conversation one of its answers, as likely as another.

    Without ``has_chat`` it is a base model: its tokenizer has no chat template, and prompts are plain text.
    """
    import torch

    words = [turn["content"] for turns, _ in said for turn in turns]
    texts = [text for text in (*words, *(answer for _, answers in said for answer in answers)) for _ in range(3)]
    tokenizer = train_tokenizer(["user\n", "assistant\n", "tool\n", *texts], 1024)
    examples = list[Example]()
    for turns, answers in said:
        if has_chat:
            prompt, gap = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False), ""
        else:
            prompt, gap = "\n\n".join(turn["content"] for turn in turns), " "
        ids: Mapping[str, list[int]] = tokenizer(prompt)
        examples += [
            Example(ids["input_ids"], [*tokenizer(gap + answer)["input_ids"], tokenizer.eos_token_id])
            for answer in answers
        ]
    epochs = -(-steps * 8 // len(examples))
    config = PretrainConfig(
        solutions=folder, max_positions=512, hidden_size=64, intermediate_size=192, layers=2, heads=2, epochs=epochs
    ).model_copy(update={"batch_size": 8, "learning_rate": 3e-3})
    model = new_model(config, tokenizer, 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long
    train_model(model, examples, config, 0, lambda *_: None)
    torch.set_num_threads(threads)
    if not has_chat:
        tokenizer.chat_template = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
