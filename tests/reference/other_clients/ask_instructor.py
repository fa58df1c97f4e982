from __future__ import annotations

from functools import partial
from typing import Any

import instructor
import openai
from pydantic import BaseModel

from tests.reference.other_clients.asking import MESSAGES, MODEL, URL, show_refusal


class Person(BaseModel):
    age: int


def ask(url: str, mode: Any) -> Any:
    """The object that a mode of Instructor gets."""
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none", max_retries=0), mode=mode)
    return client.chat.completions.create(
        model=MODEL, messages=list(MESSAGES), response_model=Person, max_retries=1, temperature=0
    )


for name in ("JSON", "JSON_SCHEMA", "TOOLS"):
    show_refusal(f"{name} refused", partial(ask, URL, instructor.Mode[name]))
