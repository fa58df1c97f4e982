"""The lines that ``trtllm-hpc endpoint`` prints, where the tests of the proxy do not run them."""

from __future__ import annotations

import shlex
from dataclasses import replace

from trtllm_hpc.cli.endpoint import access
from trtllm_hpc.runtime.records import Endpoint

TRITON = Endpoint("1", "n1", "10.0.0.1", 8000, 8001, 8002, ["ensemble"], 0.0)


def test_triton_alone_is_asked_for_its_own_model() -> None:
    found = access("run", TRITON, "ensemble", chats=False)
    words = shlex.split(found.curl)
    assert words[2] == "http://10.0.0.1:8000/v2/models/ensemble/generate" and '"text_input"' in words[-1]
    assert found.python is None and found.openai_url is None
    assert "Authorization" not in found.curl and found.ssh.startswith("ssh -N -L 8000:10.0.0.1:8000 ")


def test_the_llm_apis_model_has_a_name_of_its_own_for_the_length() -> None:
    found = access("run", TRITON, "tensorrt_llm", chats=False, length="sampling_param_max_tokens")
    assert '"sampling_param_max_tokens": 64' in found.curl and '"max_tokens"' not in found.curl


def test_an_encrypted_endpoint_is_trusted_by_its_certificate_alone() -> None:
    encrypted = replace(
        TRITON,
        openai_url="https://10.0.0.1:8443/v1",
        certificate_file="/runs/it's one/certificate.crt",
        key_file="/runs/one/key",
    )
    found = access("run", encrypted, "llama", chats=True)
    words = shlex.split(found.curl)
    assert words[:4] == ["curl", "-sS", "--cacert", "/runs/it's one/certificate.crt"]
    assert words[4] == "https://10.0.0.1:8443/v1/chat/completions"
    assert found.python is not None
    compile(found.python, "snippet", "exec")
    assert "http_client=httpx.Client(verify=trusted)" in found.python
