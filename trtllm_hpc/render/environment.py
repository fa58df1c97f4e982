"""The Jinja2 environment: one quoting filter for each context.

A template never writes quotes around a value. It names the context, and the filter makes the value
safe in it or refuses it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from trtllm_hpc.errors import RenderError
from trtllm_hpc.runtime.engine_cache.build_recipe import FolderArgument


def packaged_templates() -> PackageLoader:
    """Return the loader of the packaged ``templates/`` folder, from a wheel or a checkout."""
    return PackageLoader("trtllm_hpc.templates", "")


def shell_word(value: str | int | float) -> str:
    """Quote a value as one word of a shell command.

    Raises RenderError if the value contains NUL, which no argument can contain.
    """
    text = str(value)
    if "\0" in text:
        raise RenderError(f"{text!r} contains a NUL byte, which no command line can contain. Remove it.")
    return shlex.quote(text)


def shell_words(values: Iterable[str | int | float]) -> str:
    """Quote several values as words of a shell command, separated by spaces."""
    return " ".join(shell_word(value) for value in values)


def filled_word(text: str, **shell: str) -> str:
    """Return one shell word, with placeholders such as ``{image}`` replaced by pieces of shell code."""
    parts = re.split(r"\{(\w+)\}", text)
    return "".join(
        shell[part] if index % 2 else part and shell_word(part) for index, part in enumerate(parts)
    )


def placed_words(values: Iterable[str | FolderArgument], indent: int = 0) -> str:
    """Quote the arguments of a build step's command, a continued line for each option.

    A ``FolderArgument`` becomes the shell variable of its name, in quotes.
    """
    first, *rest = values
    new_line = " \\\n" + " " * (indent + 2)
    lines = [(new_line if str(word).startswith("--") else " ") + _placed(word) for word in rest]
    return _placed(first) + "".join(lines)


def _placed(word: str | FolderArgument) -> str:
    if isinstance(word, str):
        return shell_word(word)
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", word.name):
        raise RenderError(
            f"{word.name!r} cannot be the name of a build step, which also names a shell variable: use "
            "lower-case letters, digits and underscores."
        )
    return f'"${word.name}"' + (shell_word(word.suffix) if word.suffix else "")


def sbatch_value(value: str | int) -> str:
    """Quote the value of an ``#SBATCH`` option.

    sbatch splits these lines itself: quotes group, a backslash escapes, and an unescaped ``#`` starts a
    comment (``src/sbatch/opt.c``). Raises RenderError if the value is empty or not one line.
    """
    text = str(value)
    if not text or re.search(r"[\x00-\x1f\x7f]", text):
        raise RenderError(f"{text!r} cannot be written in an #SBATCH line: it must be one non-empty line.")
    if re.fullmatch(r"[\w@%+=:,./\[\]-]+", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def comment_text(value: str) -> str:
    """Return text for a comment, as one line."""
    return re.sub(r"[\x00-\x1f\x7f\u0085\u2028\u2029]+", " ", str(value))


def pbtxt_value(value: str | int | bool | float) -> str:
    """Return a value in protobuf's text format: numbers and booleans bare, text as a quoted string.

    Text becomes a JSON string. Protobuf has all of JSON's escapes except ``\\uXXXX``, so letters beyond
    ASCII are written unescaped.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    escaped = json.dumps(value, ensure_ascii=False)
    return re.sub(r"\\u00([0-9a-f]{2})", lambda match: f"\\{int(match[1], 16):03o}", escaped)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of all templates; an undefined name in a template is an error."""
    shared = Environment(
        loader=packaged_templates(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Nothing here is HTML: the filters below quote for their contexts.
        autoescape=False,
    )
    shared.filters.update(
        word=shell_word,
        words=shell_words,
        placed=placed_words,
        filled=filled_word,
        sbatch=sbatch_value,
        comment=comment_text,
        pbtxt=pbtxt_value,
    )
    return shared


def render_template(name: str, **values: Any) -> str:
    """Render one packaged template."""
    return environment().get_template(name).render(**values)
