"""Chats to prompts, by the Jinja template that a model's tokenizer brings.

Templates are written for ``apply_chat_template`` of transformers (``utils/chat_template_utils.py``), so the
environment and its helpers are the same, and they are sandboxed as there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtllm_hpc.gateway.answers import ApiError
from trtllm_hpc.gateway.tokenizer import ModelTokenizer

Message = Mapping[str, Any]


class _Generation(Extension):
    """``{% generation %}``, which marks the answers for training: here it is what it encloses."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter writes < and > for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A tokenizer's template; read and compiled when it is first used."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
        """Return the prompt of a chat, with its special tokens; ``arguments`` are further variables.

        Raises ApiError if the model has no template, or the template refuses the chat.
        """
        none = {"tools": None, "documents": None, "add_generation_prompt": True}
        variables = {**self._tokenizer.special_tokens, **none, **arguments}
        try:
            return self._compiled.render(messages=messages, **variables)
        except ApiError:
            raise
        except TemplateError as error:
            raise ApiError(f"The model's chat template refuses this: {error}", param="messages") from None
        # A template is a program: what a chat makes of it can fail in any way.
        except Exception as error:  # noqa: BLE001
            kind = type(error).__name__
            message = f"The model's chat template failed with this chat ({kind}: {error})."
            raise ApiError(message, param="messages") from None

    @cached_property
    def _compiled(self) -> Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment.from_string(self._source())

    def _source(self) -> str:
        file = self._tokenizer.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        found = self._tokenizer.config.get("chat_template")
        if not isinstance(found, str):
            raise ApiError(
                "This model has no chat template: neither tokenizer_config.json nor chat_template.jinja has "
                "one. Ask /v1/completions, with the whole prompt as text.",
                code="no_chat_template",
            )
        return found
