from __future__ import annotations

from typing import Any

import openai
from pydantic import BaseModel

from tests.reference.other_clients.asking import (
    COMPLETION,
    HISTORY,
    MESSAGES,
    MODEL,
    TOKENS,
    URL,
    show,
    show_refusal,
)


class Person(BaseModel):
    age: int


client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
greedy: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": TOKENS}
parse: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "response_format": Person}

show("chat", client.chat.completions.create(messages=MESSAGES, **greedy).choices[0].message.content)
chunks = client.chat.completions.create(messages=MESSAGES, stream=True, **greedy)
show("stream", "".join(chunk.choices[0].delta.content or "" for chunk in chunks))
show("completion", client.completions.create(prompt=COMPLETION, **greedy).choices[0].text)
show("history", len(client.chat.completions.create(messages=HISTORY, **greedy).choices))
show_refusal("parse", lambda: client.chat.completions.parse(**parse))
