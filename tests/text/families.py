"""Chat templates of model families, as their tokenizers carry them, in `templates/`.

Where a family's template does not say what the assistant wrote, a second one does, by
`{% generation %}`. Parts about tools and videos are left out.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


def template(name: str) -> str:
    """The template of a family."""
    path = Path(__file__).parent / "templates" / f"{name}.jinja"
    return path.read_text("utf-8").removesuffix("\n")


GEMMA, GEMMA_3, GEMMA_4 = map(template, ("gemma", "gemma-3", "gemma-4"))
GLM4V, INTERNVL, LLAMA_3, LLAVA = map(template, ("glm-4v", "internvl", "llama-3", "llava"))
PHI_3, PIXTRAL, SMOLVLM = map(template, ("phi-3", "pixtral", "smolvlm"))
QWEN2_5, QWEN2_VL = template("qwen2.5"), template("qwen2-vl")
QWEN3 = template("qwen3")  # takes the reasoning out of earlier turns, writes an empty one last
QWEN3_VL = template("qwen3-vl")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A chat template and what it expects.

    Attributes:
        template: Jinja.
        parts: contents are lists of parts.
        system: it has a place for a system message.
        end: what it writes after the assistant's content, as far as it is learnt.
        image: the token for an image in its text, None where it knows no images.
        whole: content stands in its text as it is, blanks at its ends included.
    """

    template: str
    parts: bool = False
    system: bool = True
    end: str = "<|im_end|>"
    image: str | None = None
    whole: bool = True

    @property
    def generation(self) -> bool:
        return "generation %}" in self.template


_LLAMA: dict[str, Any] = {"end": "<|eot_id|>", "whole": False}
_GEMMA: dict[str, Any] = {"end": "<end_of_turn>", "system": False, "whole": False}
FAMILIES = {
    name: Family(template=template(name), **options)
    for name, options in {
        "llava": {"parts": True, "end": " ", "image": "<image>"},
        "onevision": {"parts": True, "end": "", "image": "<image>"},
        "qwen2-vl": {"parts": True, "image": "<|image_pad|>"},
        "qwen2.5": {},
        "qwen2.5-generation": {},
        "llama-3": _LLAMA,
        "llama-3-generation": _LLAMA,
        "llama-3.2": _LLAMA,
        "mistral": {"end": "</s>", "system": False},
        "gemma": _GEMMA,
        "gemma-generation": _GEMMA,
        "smolvlm": {"parts": True, "end": "<end_of_utterance>", "image": "<image>"},
        "cohere": {
            "parts": True,
            "end": "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
            "image": "<image>",
        },
        "internvl": {"parts": True, "image": "<IMG_CONTEXT>"},
        "phi-3": {"end": "<|end|>"},
    }.items()
}


def messages(turns: list[tuple[str, str]], family: Family) -> list[dict[str, Any]]:
    """Turns as users of transformers write them, `<image>` where an image is."""
    return [{"role": role, "content": _content(text, family)} for role, text in turns]


def _content(text: str, family: Family) -> Any:
    if not family.parts:
        return text.replace("<image>", family.image or "<image>")
    parts: list[dict[str, str]] = []
    for number, stretch in enumerate(text.split("<image>")):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": stretch}] if stretch or not text else []
    return parts
