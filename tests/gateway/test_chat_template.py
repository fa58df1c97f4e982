"""Prompts of chats are those that transformers makes of the same template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.gateway.answers import ApiError
from trtllm_hpc.gateway.service import ChatTemplate
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.reference.synthetic import make_tokenizer

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief <b>&</b>."},
    {"role": "user", "content": "Où?"},
    {"role": "assistant", "content": " Là. "},
    {"role": "user", "content": "Merci"},
]
# In the style of published models: ChatML, Llama 3, Mistral, and what else templates use.
TEMPLATES = [
    """{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    """{% set loop_messages = messages %}{% for message in loop_messages %}
{% set content = '<|start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|eot|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}""",
    """{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}
{% set messages = messages[1:] %}{% endif %}
{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate') }}{% endif %}
{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]
{% else %}{% generation %}{{ message.content | trim }}{{ eos_token }}{% endgeneration %}
{% endif %}{% endfor %}""",
    """{% for message in messages %}{% if loop.index > 3 %}{% break %}{% endif %}
  {{ message | tojson }} {{ {'é': [1, '<']} | tojson(indent=2) }}
{% endfor %}{{ tools is none }} {{ mood | default('calm') }} {{ strftime_now('%Y') }}""",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def configure(folder: Path, **keys: Any) -> None:
    file = folder / "tokenizer_config.json"
    write_json(file, {**dict(read_json(file) or {}), **keys})


def render(folder: Path, chat: list[dict[str, Any]], **arguments: Any) -> str:
    template = ChatTemplate(ModelTokenizer(folder))
    return template.render(chat, arguments)


@pytest.mark.model
def test_prompts_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    for template in TEMPLATES:
        configure(folder, chat_template=template)
        theirs = AutoTokenizer.from_pretrained(str(folder))
        for arguments in ({}, {"mood": "merry"}):
            expected = theirs.apply_chat_template(
                CHAT, tokenize=False, add_generation_prompt=True, **arguments
            )
            assert render(folder, CHAT, **arguments) == expected


def test_a_template_is_found_where_models_have_it(folder: Path) -> None:
    chat = "<s>system: Be brief <b>&</b>.\nuser: Où?\nassistant:  Là. \nuser: Merci\nassistant:"
    assert render(folder, CHAT) == chat, "a synthetic model's own"
    configure(folder, chat_template=None)
    with pytest.raises(ApiError, match=r"^This model has no chat template.*Ask /v1/completions") as caught:
        render(folder, CHAT)
    assert caught.value.code == "no_chat_template"
    (folder / "chat_template.jinja").write_text("{{ messages[1].content }}", encoding="utf-8")
    assert render(folder, CHAT) == "Où?"


def test_what_a_template_refuses_is_the_clients_fault(folder: Path) -> None:
    configure(folder, chat_template=TEMPLATES[2])
    with pytest.raises(ApiError, match="refuses this: Roles must alternate") as caught:
        render(folder, [CHAT[1], CHAT[1]])
    assert (caught.value.status, caught.value.param) == (400, "messages")
    for bad in ("{{ messages[9].content.lower() }}", "{{ 1 / 0 }}", "{{ ''.__class__.__mro__ }}", "{% if %}"):
        configure(folder, chat_template=bad)
        with pytest.raises(ApiError, match="chat template"):
            render(folder, CHAT)


def test_special_tokens_may_be_objects(folder: Path) -> None:
    configure(folder, bos_token={"content": "<s>", "lstrip": False}, chat_template="{{ bos_token }}")
    assert render(folder, CHAT) == "<s>"
