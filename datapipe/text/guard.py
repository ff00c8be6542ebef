"""Guarded tokens: special tokens that mean something only where a template or image put them.

A tokenizer finds special tokens by their spelling, in any text: `<|im_end|>` in a question would
end the turn. The tokenizer made here knows them by other spellings only, which no text has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from datapipe.array_types import Bools, Int32
from datapipe.errors import DecodeError
from datapipe.text.vocabulary import Vocabulary

# Noncharacters of Unicode: valid in UTF-8, never assigned, and left alone by normalizers.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_RESERVED = re.compile(f"[{_OPEN}{_CLOSE}]")

_KEPT = ("single_word", "lstrip", "rstrip", "normalized")  # properties of an added token
_CACHED = 4096  # pieces of templates; a template has some ten that do not vary


class ReservedTokens:
    """The tokens of a tokenizer that texts must not contain.

    Those are the special ones, and the tokens of images and videos. Tokens that the configuration
    names, such as `eos_token`, are special even if the tokenizer does not call them so. The unknown
    token is left out of all counts, as it also stands for characters of the text.
    """

    def __init__(self, vocabulary: Vocabulary, *visual: str | None) -> None:
        added = vocabulary.added
        guarded = {*vocabulary.names.values(), *visual}
        self._vocabulary = vocabulary
        self._added = {
            content: entry
            for content, entry in added.items()
            if content and (entry[1].special or content in guarded)
        }
        self._alias = {
            content: f"{_OPEN}{number}{_CLOSE}" for content, (number, _) in self._added.items()
        }
        # A token that is not guarded may contain one that is, and is then the longer match.
        self._every = re.compile(one_of(filter(None, added)))
        self._guarded = re.compile(one_of(self._added))
        unknown = vocabulary.names.get("unk_token")
        self._uncounted = {unknown, vocabulary.model["model"].get("unk_token")}
        largest = max(vocabulary.tokenizer.get_vocab().values(), default=-1)
        self.size = largest + 1
        """One more than the largest id."""
        self.is_special: Bools = np.zeros(self.size, np.bool_)
        """bool [size], True for ids of guarded and counted tokens."""
        for content, (number, _) in self._added.items():
            self.is_special[number] = content not in self._uncounted
        self.count = lru_cache(_CACHED)(self._count)
        """Function that counts the guarded and counted tokens of a template's text."""
        self._lock = Lock()

    def id(self, token: str) -> int:
        """Return the id of a guarded token."""
        return self._added[token][0]

    def find(self, text: str) -> str | None:
        """Return the first guarded token that a text spells."""
        found = self._guarded.search(text)
        return found[0] if found else None

    def spell(self, text: str) -> str:
        """Return a template's text with other spellings of guarded tokens, for `apart`."""
        return self._every.sub(lambda found: self._alias.get(found[0], found[0]), text)

    @property
    def apart(self) -> tuple[Tokenizer, Int32]:
        """A tokenizer that knows guarded tokens by other spellings, and its ids' meanings.

        The meanings are int32 [its size], ids of the vocabulary.
        """
        with self._lock:  # a cached property has none from Python 3.12 on
            return self._apart

    @cached_property
    def _apart(self) -> tuple[Tokenizer, Int32]:
        spec = dict(self._vocabulary.model)
        spec["added_tokens"] = [
            token for token in spec["added_tokens"] if token["content"] not in self._added
        ]
        spec["post_processor"] = None
        spec["model"] = _rename(spec["model"], self._alias)
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        tokens = [
            AddedToken(self._alias[name], special=False, **{p: getattr(token, p) for p in _KEPT})
            for name, (_, token) in self._added.items()
        ]
        tokenizer.add_tokens(tokens)
        # Added tokens get new ids when a tokenizer is read, so they are matched by name.
        own = {alias: content for content, alias in self._alias.items()}
        ids = self._vocabulary.tokenizer.get_vocab()
        theirs = tokenizer.get_vocab()
        meaning = np.full(max(theirs.values(), default=-1) + 1, -1, np.int32)
        for content, number in theirs.items():
            meaning[number] = ids.get(own.get(content, content), -1)
        return tokenizer, meaning

    def _count(self, text: str) -> int:
        found = self._every.findall(text)
        return sum(token in self._added and token not in self._uncounted for token in found)


def check_spelling(text: str) -> None:
    """Raise `DecodeError` for a text with a code point that other spellings of tokens have."""
    if (found := _RESERVED.search(text)) is not None:
        raise DecodeError(
            f"the text spells a special token and has the noncharacter U+{ord(found[0]):04X}; "
            "remove either"
        )


def one_of(words: Iterable[str]) -> str:
    """Return a regular expression for any of these words, the longest that fits.

    It branches letter by letter: with hundreds of words, trying one after the other at each place
    costs more than encoding the text.
    """
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _branches(tree) if tree else "(?!)"


def _branches(tree: Mapping[str, Any]) -> str:
    prefix = ""
    while len(tree) == 1 and "" not in tree:
        ((letter, tree),) = tree.items()
        prefix += re.escape(letter)
    branches = [
        re.escape(letter) + _branches(below) for letter, below in sorted(tree.items()) if letter
    ]
    if not branches:
        return prefix
    joined = f"(?:{'|'.join(branches)})"
    return prefix + (f"{joined}?" if "" in tree else joined)


def _rename(model: Mapping[str, Any], alias: Mapping[str, str]) -> dict[str, Any]:
    """Return a model that cannot produce guarded tokens by itself, as Unigram does."""
    renamed = dict(model)
    vocab = model.get("vocab")
    if isinstance(vocab, Mapping):
        renamed["vocab"] = {alias.get(piece, piece): number for piece, number in vocab.items()}
    elif isinstance(vocab, list):
        renamed["vocab"] = [[alias.get(piece, piece), score] for piece, score in vocab]
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        renamed["merges"] = [
            merge for merge in model["merges"] if alias.keys().isdisjoint(_merged(merge, prefix))
        ]
    unknown = model.get("unk_token")
    if unknown is not None:
        renamed["unk_token"] = alias.get(unknown, unknown)
    return renamed


def _merged(merge: str | list[str], prefix: str) -> tuple[str, str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second, first + second.removeprefix(prefix)
