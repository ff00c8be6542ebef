"""Tokenizers with the names of their special tokens, and the image token and template to use."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from datapipe.errors import PlanError
from datapipe.text.templates import CAPTION, IMAGE_TOKENS, NEEDED_TOKENS, SOURCES, is_jinja

logger = logging.getLogger(__name__)

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_REMEDY = (
    "give a tokenizer.json, a folder that holds one, a tokenizers.Tokenizer or a fast tokenizer of "
    "transformers"
)
# What the special tokens of known models are called, for a tokenizer that comes alone.
_USUAL_NAMES = {
    "bos_token": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>"),
    "eos_token": (
        *("</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
        "<end_of_utterance>",
    ),
    "pad_token": ("<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>"),
    "unk_token": ("<unk>", "[UNK]"),
}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer as datapipe uses it."""

    tokenizer: Tokenizer  # our own copy, without truncation and padding
    model: Mapping[str, Any]  # its JSON, parsed, without both
    names: Mapping[str, str]  # special tokens by name, such as `eos_token`
    chat_template: str | None  # Jinja source of its own chat template, None where it has none
    begin: tuple[int, ...]  # tokens that its post-processor puts before a text, such as BOS

    @cached_property
    def added(self) -> dict[str, tuple[int, AddedToken]]:
        """Map the content of each added token to its id and properties."""
        decoder = self.tokenizer.get_added_tokens_decoder()
        return {token.content: (number, token) for number, token in decoder.items()}

    def id(self, name: str) -> int | None:
        """Return the id of a special token by its name."""
        token = self.names.get(name)
        return None if token is None else self.tokenizer.token_to_id(token)


def open_vocabulary(tokenizer: Any) -> Vocabulary:
    """Read a tokenizer, given as in `TextSpec.tokenizer`.

    Raises `PlanError` if there is no tokenizer there, or not one of the `tokenizers` library.
    """
    if isinstance(tokenizer, (str, Path)):
        return _from_file(Path(tokenizer))
    if isinstance(tokenizer, Tokenizer):
        return _vocabulary(_source(tokenizer), "the tokenizer", None, None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise PlanError(
            f"tokenizer of type {type(tokenizer).__name__} is not one of the tokenizers library, "
            f"which encodes without holding the interpreter's lock; {_REMEDY}"
        )
    names = _names(tokenizer.special_tokens_map.items())
    template = default_template(getattr(tokenizer, "chat_template", None))
    return _vocabulary(_source(backend), "the tokenizer", names, template)


def find_image_token(named: str | None, vocabulary: Vocabulary) -> str | None:
    """Return the token that is repeated for an image, None where the vocabulary has none.

    Raises `PlanError` if the one that was named is not there.
    """
    added = vocabulary.added
    if named is not None:
        if named not in added:
            raise PlanError(
                f"image_token {named!r} is not among the tokenizer's added tokens; add "
                "it there and to the model's embeddings, or name the one that the model uses"
            )
        return named
    own = (vocabulary.names.get(name) for name in ("context_image_token", "image_token"))
    return next((token for token in (*own, *IMAGE_TOKENS) if token in added), None)


def find_template(template: str | Path | None, vocabulary: Vocabulary) -> str:
    """Return the Jinja source of a template: built-in, in a file, itself, or the tokenizer's.

    Raises `PlanError` if there is none, or the vocabulary lacks a token that it needs.
    """
    if template is None:
        if vocabulary.chat_template is None:
            raise PlanError(
                "the tokenizer has no chat template; give template='llava', 'chatml', 'caption', "
                "or a file that has one"
            )
        return vocabulary.chat_template
    if isinstance(template, str) and template in SOURCES:
        for token in NEEDED_TOKENS.get(template, ()):
            if vocabulary.tokenizer.token_to_id(token) is None:
                raise PlanError(
                    f"template={template!r} needs the token {token!r}, and the vocabulary "
                    "lacks it; add it to the tokenizer and the model's embeddings, or use another "
                    "template"
                )
        if template == "llava" and "eos_token" not in vocabulary.names:
            raise PlanError(
                "template='llava' ends answers with the end-of-sequence token, and the tokenizer "
                "names none; give a folder whose tokenizer_config.json has eos_token"
            )
        return SOURCES[template]
    if isinstance(template, str) and is_jinja(template):
        return template
    path = Path(template)
    if path.is_dir():
        path = _template_file(path) or path / _CONFIG
    if not path.is_file():
        raise PlanError(
            f"template {str(template)!r} is neither {', '.join(map(repr, (*SOURCES, CAPTION)))}, "
            "nor a file, nor Jinja"
        )
    return read_template_file(path)


def read_template_file(path: Path) -> str:
    """Return the chat template in a Jinja or JSON file; raise `PlanError` if there is none."""
    if path.suffix != ".json":
        return _read(path, "chat template")
    template = default_template((read_json(path) or {}).get("chat_template"))
    if template is None:
        raise PlanError(
            f"{path} has no chat_template; give a file that has one, or the name of a built-in "
            "template"
        )
    return template


def _from_file(path: Path) -> Vocabulary:
    folder, file = (path, path / _FILE) if path.is_dir() else (path.parent, path)
    remedy = _REMEDY
    if not path.exists():
        remedy = (
            "names of the Hugging Face Hub are not looked up: give "
            "AutoTokenizer.from_pretrained(...), or a folder it was saved to"
        )
    elif path.is_dir():
        remedy = f"a folder needs a {_FILE}, which a fast tokenizer's save_pretrained writes"
    source = _read(file, "tokenizer", f"; {remedy}")
    config = read_json(folder / _CONFIG)
    special = read_json(folder / "special_tokens_map.json")
    names = None
    if config is not None or special is not None:
        more = (config or {}).get("extra_special_tokens")
        more = more if isinstance(more, Mapping) else {}
        names = _names((*(special or {}).items(), *(config or {}).items(), *more.items()))
    template = default_template((config or {}).get("chat_template"))
    # A processor's template comes before the tokenizer's, which may know nothing of images.
    if (template_file := _template_file(folder)) is not None:
        template = read_template_file(template_file)
    return _vocabulary(source, str(file), names, template)


def default_template(template: Any) -> str | None:
    """Return the template itself, or the default one of several with names."""
    if isinstance(template, list):
        entries = (entry for entry in template if isinstance(entry, Mapping))
        template = {entry.get("name"): entry.get("template") for entry in entries}
    if isinstance(template, Mapping):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _names(items: Iterable[tuple[str, Any]]) -> dict[str, str]:
    names = {}
    for name, token in items:
        content = token.get("content") if isinstance(token, Mapping) else token
        if name.endswith("_token") and content is not None and not isinstance(content, bool):
            names[name] = str(content)
    return names


def _source(tokenizer: Tokenizer) -> str:
    try:
        return tokenizer.to_str()
    except Exception as error:  # the library raises nothing more specific
        raise PlanError(
            f"the tokenizer cannot be copied: {error}; parts written in Python cannot be used, "
            "since a saved tokenizer would not have them"
        ) from error


def _vocabulary(
    source: str, name: str, names: dict[str, str] | None, template: str | None
) -> Vocabulary:
    try:
        tokenizer = Tokenizer.from_str(source)
    except Exception as error:  # the library raises nothing more specific
        raise PlanError(
            f"{name} is not a tokenizer in the tokenizers library's format: {error}; {_REMEDY}"
        ) from error
    # Both are the loader's to decide.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    begin = _begin(tokenizer)
    if names is None:
        names = _usual_names(tokenizer, begin)
    return Vocabulary(
        tokenizer=tokenizer,
        model=json.loads(tokenizer.to_str()),
        names=names,
        chat_template=template,
        begin=begin,
    )


def _begin(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that the post-processor puts before a text."""
    text = "a"
    if tokenizer.token_to_id(text) is None:  # one of whole words may know no letters
        own = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        text = min(tokenizer.get_vocab(with_added_tokens=False).keys() - own, default=text)
    try:
        alone = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text).ids
    except Exception as error:  # the library raises nothing more specific
        raise PlanError(f"the tokenizer cannot encode {text!r}: {error}; {_REMEDY}") from error
    for start in range(len(whole) - len(alone) + 1):
        if alone and whole[start : start + len(alone)] == alone:
            return tuple(whole[:start])
    return ()


def _usual_names(tokenizer: Tokenizer, begin: tuple[int, ...]) -> dict[str, str]:
    """Return the names of special tokens, for a tokenizer that comes without them."""
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    present = ((name, [t for t in usual if t in special]) for name, usual in _USUAL_NAMES.items())
    names = {name: tokens[0] for name, tokens in present if tokens}
    if begin and (first := tokenizer.id_to_token(begin[0])) is not None:
        names["bos_token"] = first
    logger.info("special tokens taken by their usual names, as the tokenizer came alone: %s", names)
    return names


def _template_file(folder: Path) -> Path | None:
    """Return the file of a folder that holds a template alone, None without one."""
    # In the order of a processor of transformers.
    paths = (folder / name for name in ("chat_template.json", "chat_template.jinja"))
    return next(filter(Path.is_file, paths), None)


def _read(path: Path, what: str, remedy: str = "") -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{what} {path} cannot be read: {error}{remedy}") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file of a checkpoint; None if there is no such file."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(found, dict):
        raise PlanError(f"{path} holds no JSON object; download it again")
    return found
