"""The certificate that the proxy shows, made for the run.

Clients trust exactly the file ``certificate.crt`` of the run folder.
``certificate.pem`` is what HAProxy takes: certificate and private key.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import subprocess
from pathlib import Path

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths, write_text


def make_certificate(paths: RunPaths, address: str) -> None:
    """Write a self-signed certificate for this host, and its key; raises StartFailed if ``openssl`` fails."""
    names = f"subjectAltName=IP:{address},IP:127.0.0.1,DNS:{socket.gethostname()},DNS:localhost"
    key = paths.certificate_key.with_suffix(".key")
    try:
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "365", "-subj", "/CN=trtllm-hpc", "-addext", names),
            *("-keyout", str(key), "-out", str(paths.certificate)),
        )
        write_text(paths.certificate_key, key.read_text() + paths.certificate.read_text(), mode=0o600)
    except (OSError, subprocess.CalledProcessError) as error:
        raise _failed("the certificate cannot be made", error) from error
    finally:
        key.unlink(missing_ok=True)


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 fingerprint of a certificate (PEM), as ``openssl x509 -fingerprint`` shows it."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def _openssl(*words: str) -> str:
    answer = subprocess.run(
        ["openssl", *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return answer.stdout


def _failed(what: str, error: Exception) -> StartFailed:
    why = str(getattr(error, "stderr", None) or error).strip()
    return StartFailed(f"{what}: {why}", hint="install openssl on the nodes, or set serve.tls to false")
