from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from tests.reference.other_clients.asking import CHAT, COMPLETION, MODEL, TOKENS, URL, show

greedy: dict[str, Any] = {"model": MODEL, "api_base": URL, "api_key": "none", "temperature": 0}
greedy |= {"max_tokens": TOKENS, "max_retries": 0, "context_window": 512}
chats, completes = (OpenAILike(is_chat_model=chat, **greedy) for chat in (True, False))
question = [ChatMessage(role="user", content=CHAT)]

show("chat", chats.chat(question).message.content)
show("stream", "".join(part.delta or "" for part in chats.stream_chat(question)))
show("completion", completes.complete(COMPLETION).text)
show("stream of a completion", "".join(part.delta or "" for part in completes.stream_complete(COMPLETION)))
