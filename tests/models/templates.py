"""Chat templates of models as published: what concerns texts and images."""

from __future__ import annotations

# Of Qwen3-VL's, what concerns texts and images.
QWEN3_VL = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}"
    "{%- for content in message.content %}"
    "{%- if content.type == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{%- elif 'text' in content %}"
    "{{- content.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# Of Pixtral's, without the demand that roles alternate.
PIXTRAL = (
    "{{- bos_token }}{%- for message in messages %}{%- if message.role == 'user' %}{{- '[INST]' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}"
    "{%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}"
    "{%- elif part.type == 'image' %}{{- '[IMG]' }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '[/INST]' }}{%- elif message.role == 'assistant' %}"
    "{%- if message.content is string %}{{- message.content + eos_token }}{%- else %}"
    "{{- message.content[0].text + eos_token }}{%- endif %}{%- endif %}{%- endfor %}"
)

# Of GLM-4V's, what concerns texts and images.
GLM4V = (
    "[gMASK]<sop>{%- for m in messages %}{%- if m.role == 'user' %}<|user|>\n"
    "{%- if m.content is string %}{{ m.content }}{%- else %}{%- for item in m.content %}"
    "{%- if item.type == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{%- elif item.type == 'text' %}{{ item.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{%- elif m.role == 'assistant' %}<|assistant|>\n{%- if m.content is string %}"
    "{{ m.content }}{%- else %}{{ m.content[0].text }}{%- endif %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>\n{%- endif %}"
)

# Of Gemma 4's, what concerns texts and images.
GEMMA_4 = (
    "{{ bos_token }}{%- for message in messages -%}"
    "{%- set role = 'model' if message.role == 'assistant' else message.role -%}"
    "{{- '<|turn>' + role + '\n' -}}{%- if message.content is string -%}"
    "{{- message.content | trim -}}{%- else -%}{%- for item in message.content -%}"
    "{%- if item.type == 'text' -%}{{- item.text | trim -}}{%- elif item.type == 'image' -%}"
    "{{- '<|image|>' -}}{%- endif -%}{%- endfor -%}{%- endif -%}{{- '<turn|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|turn>model\n' -}}{%- endif -%}"
)
