"""Facts of a tokenizer for the model, and a tokenizer that needs no file."""

from pathlib import Path
from typing import NamedTuple, Self

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>")
_IMAGES = ("<image>", "<|image_pad|>", "<IMG_CONTEXT>")


class Vocabulary(NamedTuple):
    """A tokenizer, its number of tokens, and the token of images: as written, and its number."""

    tokenizer: Tokenizer
    size: int
    image: str
    image_id: int

    @classmethod
    def of(cls, path: Path | None) -> Self:
        """Load that of a `tokenizer.json`; None takes one of bytes."""
        if path is None:
            tokenizer = byte_tokenizer()
        elif not path.is_file():
            raise ValueError(f"{path}: there is no tokenizer; give a tokenizer.json")
        else:
            try:
                tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:
                raise ValueError(f"{path}: this is no tokenizer.json ({error})") from error
        known = tokenizer.get_vocab()
        image = next((token for token in _IMAGES if token in known), None)
        if image is None:
            raise ValueError(
                f"{path} has no token for images, none of {', '.join(_IMAGES)}; add one to it"
            )
        # Numbers may have gaps, so the largest decides.
        return cls(tokenizer, max(known.values()) + 1, image, known[image])


def byte_tokenizer() -> Tokenizer:
    """Make a tokenizer of bytes: no training, no download, and texts four times as long."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer
