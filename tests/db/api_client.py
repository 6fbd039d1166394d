"""A person at the API: JSON in, JSON out, with a real token."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

BASE = "/api/v1"
# What every request costs before its view: the token with its user, the user's permissions, those of the groups.
WHO_QUERIES = 3


class Api:
    """Calls with one user's token; without a user nobody's. `path` is what follows `/api/v1`."""

    def __init__(self, user: User | None = None) -> None:
        self.client = APIClient()
        if user is not None:
            token, _ = Token.objects.get_or_create(user=user)
            self.client.credentials(HTTP_AUTHORIZATION=f"Token {token.key}")

    def get(self, path: str, **query: Any) -> Any:
        """GET; an address that starts with http is taken as it is."""
        return self.client.get(path if path.startswith("http") else BASE + path, query or None)

    def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, raw: bytes | None = None
    ) -> Any:
        """A request that changes something; `raw` is sent instead of `body` as it is."""
        headers = {"Idempotency-Key": key} if key is not None else {}
        if raw is not None:
            return self.raw(method, path, raw, "application/json", headers=headers)
        return getattr(self.client, method.lower())(BASE + path, body, format="json", headers=headers)

    def raw(self, method: str, path: str, body: bytes, kind: str, **extra: Any) -> Any:
        """A request with these bytes of this kind."""
        untyped: Any = self.client
        return untyped.generic(method, BASE + path, body, kind, **extra)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """POST."""
        return self.send("POST", path, body if body is not None else {}, key=key)

    def patch(self, path: str, body: Any, *, key: str | None = None) -> Any:
        """PATCH."""
        return self.send("PATCH", path, body, key=key)

    def delete(self, path: str, *, key: str | None = None) -> Any:
        """DELETE."""
        return self.send("DELETE", path, key=key)


def problem(response: Any, status: int, code: str | None = None) -> dict[str, Any]:
    """The problem details of a refused request, after a look at their form."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["type"] == f"urn:tickwork:problem:{body['code']}"
    assert body["title"]
    assert body["detail"]
    assert code is None or body["code"] == code, body
    return body
