"""Keeps http_request from reaching the machines beside the worker.

A job's URL is input: without a guard, whoever may create a job could read cloud metadata or the services
of the worker's own network. The guard sits where the connection is made: the name is resolved once, every
address of it is judged, and exactly a judged address is dialled. So neither a redirect nor a name that
resolves differently the second time (DNS rebinding) gets around it. It decides nothing about URLs.
"""

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

import httpcore

from tickwork.builtin import settings
from tickwork.errors import PermanentError

Address = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
# What the standard library calls global in one or another supported Python version, but is not public.
_NOT_PUBLIC = [IPv6Network(text) for text in ("64:ff9b:1::/48", "3fff::/20", "fec0::/10")]
# A cloud's own services at a public address (Azure: metadata and agents).
_PLATFORM = IPv4Address("168.63.129.16")
_ADDRESSES_TRIED = 4


def is_public(address: Address) -> bool:
    """Whether the address belongs to the public internet; one that wraps an IPv4 address is judged by that."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if any(address in network for network in _NOT_PUBLIC):
            return False
    if address == _PLATFORM:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


class AddressGuard:
    """The rule of one worker: public addresses, and what its settings allow beyond them."""

    def __init__(self, *, allow_private: bool = False, allowed_hosts: frozenset[str] = frozenset()) -> None:
        self.allow_private = allow_private
        self.allowed_hosts = allowed_hosts

    @classmethod
    def from_settings(cls) -> "AddressGuard":
        """Read the worker's settings."""
        return cls(
            allow_private=settings.flag(settings.HTTP_ALLOW_PRIVATE),
            allowed_hosts=settings.names(settings.HTTP_ALLOWED_HOSTS),
        )

    def check(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise PermanentError, with the remedy, unless every address may be connected to."""
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self.allow_private or name.lower() in self.allowed_hosts:
            return
        for text in addresses:
            if not is_public(ip_address(text.partition("%")[0])):
                raise PermanentError(
                    f"{name} resolves to {text}, which is not a public address. To allow it, add {name} to"
                    f" {settings.HTTP_ALLOWED_HOSTS} on the worker (or set {settings.HTTP_ALLOW_PRIVATE}=true)"
                )


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Network backend for httpcore that dials only addresses the guard has passed."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers. TLS, done later by the pool, still verifies the host name."""
        addresses = await _resolve(host, port)
        self._guard.check(host, port, addresses)
        share = None if timeout is None else timeout / len(addresses)
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise httpcore.ConnectError(f"no address of {host} accepts connections on port {port}: {failure}")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.UnsupportedProtocol("http_request does not connect to Unix sockets")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, in the resolver's order, at most a few."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"the name {host} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:_ADDRESSES_TRIED]
