from __future__ import annotations

import asyncio
from typing import Any

import litellm

from tests.reference.other_clients.asking import (
    COMPLETION,
    HISTORY,
    MESSAGES,
    MODEL,
    TOKENS,
    TOOL,
    URL,
    show,
    show_refusal,
)

asked: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "none", "max_retries": 0}
greedy: dict[str, Any] = {**asked, "temperature": 0, "max_tokens": TOKENS}
json_object = {"type": "json_object"}


def content(answer: Any) -> Any:
    return answer.choices[0].message.content


def chat_of(count: int) -> Any:
    return litellm.completion(messages=[{"role": "user", "content": "A, " * count}], **greedy)


show("chat", content(litellm.completion(messages=MESSAGES, **greedy)))
chunks = litellm.completion(messages=MESSAGES, stream=True, **greedy)
show("stream", "".join(chunk.choices[0].delta.content or "" for chunk in chunks))
show("acompletion", content(asyncio.run(litellm.acompletion(messages=MESSAGES, **greedy))))
words = {**greedy, "model": f"text-completion-openai/{MODEL}"}
show("completion", litellm.text_completion(prompt=COMPLETION, **words).choices[0].text)
show("history", len(litellm.completion(messages=HISTORY, **greedy).choices))
without = litellm.completion(messages=MESSAGES, tools=[TOOL], tool_choice="none", **greedy)
show("tools none", content(without))
show_refusal("tools", lambda: litellm.completion(messages=MESSAGES, tools=[TOOL], **greedy))
show_refusal("far too long", lambda: chat_of(9000))
refused = {**greedy, "response_format": json_object}
show_refusal("json", lambda: litellm.completion(messages=MESSAGES, **refused))
