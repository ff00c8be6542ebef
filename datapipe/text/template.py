"""Chat templates: Jinja as in `tokenizer_config.json`, rendered with or without marks.

Templates come with models and are not trusted: they run in Jinja's sandbox and see nothing but
strings, lists and dicts. Marks say where each piece of a rendered text came from. They are lone
surrogates: code points that a Python string can hold but no valid text can, since UTF-8 has no
bytes for them. So nothing in a sample can be mistaken for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from datapipe.errors import DecodeError, PlanError

ANSWER = "\udc02"
"""Mark that begins an answer."""

_GENERATION, _GENERATION_END = "\udc06", "\udc07"
_MARK = re.compile("([\udc01-\udc07])")

Message = dict[str, Any]


class Kind(IntEnum):
    """Author of a piece of text."""

    TEMPLATE = 0
    CONTENT = 1
    ANSWER = 2
    """The assistant's content."""
    IMAGE = 3
    """An image's mark, written by us into a content."""

    def mark(self, text: str) -> str:
        """Return a text between the marks of this author, which is not the template."""
        begin, end = _AROUND[self]
        return f"{begin}{text}{end}"


Piece = tuple[Kind, str]
Span = tuple[int, int]

# Marks around a text, by the number of its author.
_AROUND = (("", ""), ("\udc01", "\udc03"), (ANSWER, "\udc03"), ("\udc04", "\udc05"))
_BEGINS = {begin: Kind(number) for number, (begin, _) in enumerate(_AROUND) if begin}


class Parsed(NamedTuple):
    """A rendered conversation in pieces."""

    pieces: list[Piece]  # (who wrote it, text), concatenated
    generated: list[Span]  # (start, stop) of pieces that the template says the assistant wrote
    text: str  # without marks


def _cut_at_marks(marked: str) -> Parsed | None:
    parts = _MARK.split(marked)
    pieces: list[Piece] = []
    generated: list[Span] = []
    kind, begun = Kind.TEMPLATE, -1
    # A text and the mark behind it; the last text has none.
    for text, mark in zip(parts[::2], [*parts[1::2], ""], strict=True):
        if text or kind is not Kind.TEMPLATE:
            pieces.append((kind, text))
        if not mark:
            break
        if mark in _BEGINS and kind is Kind.TEMPLATE:
            kind = _BEGINS[mark]
        elif mark == _AROUND[kind][1]:
            kind = Kind.TEMPLATE
        elif mark == _GENERATION and begun < 0:
            begun = len(pieces)
        elif mark == _GENERATION_END and begun >= 0:
            generated.append((begun, len(pieces)))
            begun = -1
        else:
            return None
    if kind is not Kind.TEMPLATE or begun >= 0:
        return None
    return Parsed(pieces, generated, "".join(parts[::2]))


# The date that Llama's templates fall back on. Tokens are counted once and used for months, so the
# day on which a text is rendered must not change it.
_TODAY = datetime(2024, 7, 26)

# What a template can raise on a conversation it was not written for.
_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class ChatTemplate:
    """A compiled chat template; may be used by several threads at once.

    `names` are special tokens by the names that templates know. `PlanError` if it is not Jinja.
    """

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        marking = _environment(_GENERATION, _GENERATION_END)
        plain = _environment("", "")
        variables = {"tools": None, "documents": None, "add_generation_prompt": False, **names}
        try:
            tree = marking.parse(source)
            self._marked = marking.from_string(source, globals=variables)
            self._plain = plain.from_string(source, globals=variables)
        except (TemplateSyntaxError, RecursionError) as error:
            line = f" in line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise PlanError(f"the chat template is not valid Jinja{line}: {error}") from error
        used = meta.find_undeclared_variables(tree)
        self.names = {name: token for name, token in sorted(names.items()) if name in used}
        """Special tokens that it refers to."""
        self.marks_generation = any(
            isinstance(call.call.node, nodes.ExtensionAttribute)
            for call in tree.find_all(nodes.CallBlock)
            if isinstance(call.call, nodes.Call)
        )
        """True if it marks what the assistant wrote by `{% generation %}`."""

    def render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """Return the text of a conversation, and the beginning of an assistant's turn if `prompt`.

        Raises `DecodeError` if the template refuses the conversation.
        """
        return _render(self._plain, messages, prompt)

    def parse(self, messages: Sequence[Message], *, prompt: bool = False) -> Parsed | None:
        """Return the same, cut at the marks that its texts have and those of `{% generation %}`.

        None where the template has torn pairs of marks apart, as those do that rewrite contents.
        """
        return _cut_at_marks(_render(self._marked, messages, prompt))


def _render(template: Template, messages: Sequence[Message], prompt: bool) -> str:
    try:
        return template.render(messages=messages, add_generation_prompt=prompt)
    except _ERRORS as error:
        reason = str(error) or type(error).__name__
        raise DecodeError(f"the chat template refuses the conversation: {reason}") from error


def _environment(begin: str, end: str) -> Environment:
    """Return an environment that writes these around what templates mark as generated."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.extend(generation=(begin, end))
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _TODAY.strftime
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes characters that mean something in HTML.
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`, as Hugging Face's templates use it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own class variable

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        begin, end = self.environment.generation  # type: ignore[attr-defined]
        return f"{begin}{caller()}{end}"
