"""Built-in templates, and how known models write an image."""

from __future__ import annotations

from collections.abc import Container

# The conversation `vicuna_v1` of LLaVA-1.5 (llava/conversation.py): turns end alternately in a
# space and in the end-of-sequence token, which belongs to what the model learns.
_LLAVA = """\
{%- if messages[0]['role'] == 'system' -%}
{{ messages[0]['content'] + ' ' }}
{%- else -%}
{{ "A chat between a curious user and an artificial intelligence assistant. " }}
{{- "The assistant gives helpful, detailed, and polite answers to the user's questions. " }}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{{ 'USER: ' + message['content'] + ' ' }}
{%- elif message['role'] == 'assistant' -%}
{{ 'ASSISTANT: ' }}
{%- generation -%}
{{ message['content'] + eos_token }}
{%- endgeneration -%}
{%- elif not (message['role'] == 'system' and loop.first) -%}
{{ raise_exception('the llava template has no place for the role ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}
"""

# https://github.com/openai/openai-python/blob/release-v0.28.0/chatml.md
_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}
{{ message['content'] + '<|im_end|>' }}
{%- endgeneration -%}
{%- else -%}
{{ message['content'] + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

CAPTION = "caption"
"""Name of the template that is no conversation; it has no source."""

SOURCES = {"llava": _LLAVA, "chatml": _CHATML}

BUILT_IN = (*SOURCES, CAPTION)


def is_jinja(template: str) -> bool:
    """Return True if a template is given as its source, and not by name or file."""
    return "{{" in template or "{%" in template


NEEDED_TOKENS = {"chatml": ("<|im_start|>", "<|im_end|>")}
"""Tokens without which a built-in template would be spelled out letter by letter."""

BEGINS_WITH_BOS = frozenset({"llava"})
"""Built-in templates before which a beginning-of-sequence token stands, where the tokenizer's own
post-processor adds one, as LLaVA's training code does."""

IMAGE_TOKENS = (
    "<image>",  # LLaVA, Idefics2 and 3, SmolVLM, PaliGemma, Granite
    "<|image_pad|>",  # Qwen2-VL to Qwen3-VL
    "<IMG_CONTEXT>",  # InternVL
    "<image_soft_token>",  # Gemma 3
    "<|image|>",  # Llama 3.2 Vision, GLM-4V, Phi-4
    "[IMG]",  # Pixtral, Mistral Small
    "<|image_token|>",
    "<|IMAGE_PLACEHOLDER|>",  # ERNIE
    "<|media_pad|>",  # Kimi-VL
    "<image_pad>",
    "<imgpad>",  # GOT-OCR
    "<image_placeholder>",  # Janus, DeepSeek-VL
    "<|patch|>",  # Llama 4
)
"""Tokens that models repeat for an image; the first that is in the vocabulary is taken."""

# What stands around an image's tokens. Chat templates either write it themselves or leave it to the
# model's processor, which puts it where the template wrote a placeholder. Sources: the processors
# of qwen2_vl, internvl, gemma3, smolvlm and glm4v in transformers.
_MARKS = {
    "<|image_pad|>": ("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    "<IMG_CONTEXT>": ("<img><IMG_CONTEXT></img>", "<IMG_CONTEXT>"),
    "<image_soft_token>": (
        "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
        "<start_of_image>",
    ),
    "<image>": ("<fake_token_around_image><global-img><image><fake_token_around_image>", "<image>"),
    "<|image|>": ("<|begin_of_image|><|image|><|end_of_image|>", "<|image|>"),
}


def image_mark(image_token: str, added: Container[str]) -> tuple[str, str]:
    """Return how an image is written if the template leaves it to us, and the placeholder then.

    The mark holds `image_token` once. Where the tokens that a known model puts around it are not
    among the `added` tokens of the tokenizer, mark and placeholder are the image token itself.
    """
    mark, placeholder = _MARKS.get(image_token, (image_token, image_token))
    around = mark.strip("\n").replace(image_token, "").replace("><", ">\0<").split("\0")
    if all(token in added for token in around if token):
        return mark, placeholder
    return image_token, image_token
