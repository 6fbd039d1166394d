"""From a URL to a broker; the implementation is imported only when it is asked for."""

from __future__ import annotations

from urllib.parse import urlsplit

from tickwork.broker.base import Broker
from tickwork.errors import ConfigurationError

SCHEMES = ("sqlite", "amqp", "amqps")


def connect(url: str) -> Broker:
    """The broker behind `url`: `sqlite:///path/to/file` or `amqp[s]://user:password@host:port/vhost`.

    Does not open a connection yet. Raises ConfigurationError for any other scheme; the password is never part of the
    text.
    """
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from tickwork.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(url)
    if scheme in ("amqp", "amqps"):
        from tickwork.broker.rabbitmq import RabbitBroker

        return RabbitBroker(url)
    raise ConfigurationError(f"BROKER_URL starts with {scheme!r}; allowed are {', '.join(f'{s}://' for s in SCHEMES)}")
