"""The certificate that the proxy shows: one that is made for the run, or a given one.

Clients trust exactly the file ``certificate.crt`` of the run folder, whoever has signed it.
``certificate.pem`` is what HAProxy takes: certificate and private key.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import subprocess
from pathlib import Path

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths, write_text

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


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


def take_certificate(paths: RunPaths, given: Path) -> str:
    """Let the proxy show a given certificate; returns the name that it is for.

    Its private key stays where it is. Raises StartFailed without both in the file, or without ``openssl``.
    """
    hint = "serve.certificate is one PEM file with the certificate and its private key"
    try:
        text = given.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise StartFailed(f"the certificate cannot be read: {error}", hint=hint) from error
    own = _CERTIFICATE.search(text)
    if own is None or "PRIVATE KEY-----" not in text:
        lacking = "certificate" if own is None else "private key"
        raise StartFailed(f"{given} holds no {lacking}", hint=hint)
    # Only the first is the proxy's own; with those that have signed it, clients would trust more than it.
    write_text(paths.certificate, own[0])
    paths.certificate_key.unlink(missing_ok=True)
    paths.certificate_key.symlink_to(given)
    return _name(paths.certificate)


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 fingerprint of a certificate (PEM), as ``openssl x509 -fingerprint`` shows it."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def _name(certificate: Path) -> str:
    try:
        shown = _openssl("x509", "-in", str(certificate), "-noout", "-subject", "-ext", "subjectAltName")
    except (OSError, subprocess.CalledProcessError) as error:
        raise _failed("the certificate cannot be read", error) from error
    names = re.search(r"(?:DNS|IP Address):([^,\s]+)", shown) or re.search(r"CN ?= ?([^,\s/]+)", shown)
    return names[1].replace("*", "proxy") if names else "localhost"


def _openssl(*words: str) -> str:
    answer = subprocess.run(
        ["openssl", *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return answer.stdout


def _failed(what: str, error: Exception) -> StartFailed:
    why = str(getattr(error, "stderr", None) or error).strip()
    return StartFailed(f"{what}: {why}", hint="install openssl on the nodes, or set serve.tls to false")
