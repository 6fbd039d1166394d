"""Which addresses http_request may connect to."""

from __future__ import annotations

from ipaddress import ip_address

import httpcore
import pytest

from tickwork.builtin.addresses import AddressGuard, GuardedBackend, is_public
from tickwork.errors import PermanentError

PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
NOT_PUBLIC = [
    "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "168.63.129.16",
    "::1", "::", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1", "3fff::1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))


def test_the_refusal_names_the_address_and_both_remedies() -> None:
    with pytest.raises(PermanentError) as caught:
        AddressGuard().check("intranet.example", 8080, ["10.1.2.3"])
    for part in (
        "intranet.example:8080",
        "10.1.2.3",
        "TICKWORK_HTTP_ALLOWED_HOSTS",
        "TICKWORK_HTTP_ALLOW_PRIVATE=true",
    ):
        assert part in str(caught.value)


def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    with pytest.raises(PermanentError):
        AddressGuard().check("mixed.example", 443, ["8.8.8.8", "127.0.0.1"])


def test_a_scoped_link_local_address_is_refused() -> None:
    with pytest.raises(PermanentError):
        AddressGuard().check("fe80::1%eth0", 80, ["fe80::1%eth0"])


def test_an_allowed_host_is_allowed_at_its_port_only() -> None:
    guard = AddressGuard(allowed_hosts=frozenset({"intranet.example:8080", "[::1]:80"}))
    guard.check("Intranet.Example", 8080, ["10.1.2.3"])
    guard.check("::1", 80, ["::1"])
    with pytest.raises(PermanentError):
        guard.check("intranet.example", 22, ["10.1.2.3"])


def test_allow_private_allows_every_address() -> None:
    AddressGuard(allow_private=True).check("localhost", 80, NOT_PUBLIC)


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0"])
async def test_other_spellings_of_this_machine_are_refused_before_a_connection_is_made(host: str) -> None:
    with pytest.raises(PermanentError, match="not a public address"):
        await GuardedBackend(AddressGuard()).connect_tcp(host, 9, timeout=5)


async def test_a_name_that_does_not_resolve_is_a_connection_error() -> None:
    with pytest.raises(httpcore.ConnectError, match="cannot be resolved"):
        await GuardedBackend(AddressGuard()).connect_tcp("no-such-host.invalid", 80, timeout=5)


async def test_unix_sockets_are_refused() -> None:
    with pytest.raises(httpcore.UnsupportedProtocol):
        await GuardedBackend(AddressGuard()).connect_unix_socket("/run/some.sock")
