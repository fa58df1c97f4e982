from __future__ import annotations

from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from tests.reference.other_clients.asking import (
    CHAT,
    COMPLETION,
    MODEL,
    TOKENS,
    TOOL,
    URL,
    show,
    show_refusal,
)


class Person(BaseModel):
    """A person."""

    age: int


greedy: dict[str, Any] = {"model": MODEL, "api_key": "none", "temperature": 0, "max_retries": 0}
model = ChatOpenAI(base_url=URL, max_tokens=TOKENS, **greedy)
called = AIMessage("", tool_calls=[{"name": "look_up", "args": {"name": "A"}, "id": "1"}])

show("invoke", model.invoke(CHAT).content)
show("stream", "".join(chunk.content for chunk in model.stream(CHAT)))
show("batch", [answer.content for answer in model.batch([CHAT, CHAT])])
show("completion", OpenAI(base_url=URL, max_tokens=TOKENS, **greedy).invoke(COMPLETION))
history = [HumanMessage(CHAT), called, ToolMessage("A did.", tool_call_id="1")]
show("history", model.invoke(history).response_metadata["finish_reason"])
show("tools none", model.bind_tools([TOOL], tool_choice="none").invoke(CHAT).content)
show_refusal("tools", lambda: model.bind_tools([TOOL]).invoke(CHAT))
for method in ("json_schema", "function_calling"):
    structured = model.with_structured_output(Person, method=method)
    show_refusal(f"{method} refused", partial(structured.invoke, CHAT))
