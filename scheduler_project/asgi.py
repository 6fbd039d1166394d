"""HTTP and websocket entry."""

from __future__ import annotations

import os
from typing import Any, cast

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
_http = get_asgi_application()  # loads the apps, which the imports below need

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.urls import path, re_path  # noqa: E402

from occurrences.consumers import LiveConsumer  # noqa: E402
from scheduler_project.views import no_such_socket  # noqa: E402

_sockets = URLRouter([path("ws/live/", LiveConsumer.as_asgi()), re_path(r"", cast(Any, no_such_socket))])
application = ProtocolTypeRouter(
    {"http": _http, "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(_sockets))}
)
