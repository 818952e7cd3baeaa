"""Chat templates of three families in our own words: what they do with earlier turns, read from the originals.

Qwen/Qwen3-*, meta-llama/Meta-Llama-3-*-Instruct, google/gemma-3-*-it. Left out is what no test asks: tools' schemas,
images, calls apart from a turn's content. The markers are those of the tests' tokenizer.
"""

QWEN = (
    "{% set ns = namespace(asked=-1) %}"
    "{% for m in messages if m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{% set ns.asked = messages.index(m) %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    # reasoning stays behind the last question, and is left out before it
    "{% set said = m.content.split('</think>')[-1].lstrip('\\n') %}"
    "{% set parts = m.content.split('</think>') %}"
    "{% set thought = parts[0].split('<think>')[-1].strip('\\n') if parts|length > 1 else '' %}"
    "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.asked and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ said }}<|im_end|>\n"
    "{% elif m.role == 'tool' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA = (
    "{% for m in messages %}"
    # later versions give tools' results to a role of their own, as JSON: a text is iterable
    "{% if m.role == 'tool' %}<|im_start|>ipython\n\n"
    "{{ m.content | tojson if m.content is iterable else m.content }}<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
FAMILIES = {"qwen": QWEN, "llama": LLAMA, "gemma": GEMMA}
