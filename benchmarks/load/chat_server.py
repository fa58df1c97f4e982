"""A server of OpenAI's chat that takes as long as a model of known speed would: ``python -m ... PORT``.

The first token comes after 20 ms and 0.5 ms for each word of the prompt, another one every 10 ms.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

MODEL = "timed"
_BASE_S, _WORD_S, _TOKEN_S = 0.02, 0.0005, 0.01


async def _chat(request: web.Request) -> web.StreamResponse:
    begun = asyncio.get_running_loop().time()
    body = await request.json()
    words = sum(len(message["content"].split()) for message in body["messages"])
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    for token in range(body["max_tokens"]):
        due = begun + _BASE_S + _WORD_S * words + _TOKEN_S * token
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        await reply.write(_event({"content": f" word{token}"}))
    usage = {"prompt_tokens": words, "completion_tokens": body["max_tokens"]}
    await reply.write(_event({}, usage) + b"data: [DONE]\n\n")
    return reply


def _event(delta: dict[str, str], usage: dict[str, int] | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": "length" if usage else None}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}
    return b"data: " + json.dumps({**chunk, "usage": usage}).encode() + b"\n\n"


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


if __name__ == "__main__":
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", _chat), web.get("/v1/models", _models)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
