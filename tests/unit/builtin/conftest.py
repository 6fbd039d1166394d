"""Real counterparts for the shipped job types: a web server and a mail server, each on a thread."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from tests.unit.builtin.mailserver import MailServer
from tests.unit.builtin.webserver import WebServer


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's environment says, a test sets what it needs."""
    for name in list(os.environ):
        if name.startswith(("TICKWORK_HTTP", "TICKWORK_SHELL", "TICKWORK_SMTP", "TICKWORK_EMAIL", "TICKWORK_SQL")):
            monkeypatch.delenv(name)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A web server on this machine, which the worker's owner has allowed."""
    with WebServer() as server:
        monkeypatch.setenv("TICKWORK_HTTP_ALLOWED_HOSTS", server.host_and_port)
        yield server


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """A mail server without TLS, named in the worker's settings."""
    with MailServer() as server:
        monkeypatch.setenv("TICKWORK_SMTP_URL", f"smtp://127.0.0.1:{server.port}?tls=none")
        monkeypatch.setenv("TICKWORK_EMAIL_FROM", "Tickwork <jobs@example.org>")
        yield server


@pytest.fixture(scope="session")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """TLS of a server whose certificate is for 127.0.0.1 but signed by nobody."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    pem.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    return context
