"""A repeated request gets the first answer, and its change is made once.

`Idempotent` is the mixin of every API view that changes something: a POST, PATCH or DELETE that carries the header
`Idempotency-Key` goes through `answer_once`. The record of the answer and the change commit in one transaction, so
there is never one without the other. Nothing here knows what the change is.

    key not seen      the change is made, the answer is kept         the answer
    key seen          same method, path and body                     the kept answer, with Idempotent-Replayed: true
                      anything else                                  409 idempotency_key_reuse
    key being worked  in another transaction right now               409 idempotency_in_progress, Retry-After
    no key            the change is made, or where the settings want a key: 400 idempotency_key_missing
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import msgspec
from django.db import IntegrityError, connection, transaction
from django.http import QueryDict
from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.conf import conf
from jobs.errors import NotPossibleNow, OperationRefused
from jobs.models import IdempotencyRecord
from jobs.transactions import made_again, was_given_up

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
METHODS = frozenset({"POST", "PATCH", "DELETE"})
MAX_KEY_LENGTH = 255
# Answers that say nothing about the change itself: the same request may be answered otherwise a moment later.
_NEVER_KEPT = frozenset({401, 403, 429})


class InvalidKey(OperationRefused):
    """The header's value cannot be a key."""

    code = "idempotency_key_invalid"


class KeyMissing(OperationRefused):
    """This server wants a key with every change."""

    code = "idempotency_key_missing"


class KeyReused(NotPossibleNow):
    """The key belongs to another request."""

    code = "idempotency_key_reuse"


class KeyInProgress(NotPossibleNow):
    """The first request with this key has not been answered yet."""

    code = "idempotency_in_progress"
    retry_after_seconds = 1


@made_again
def answer_once(
    work: Callable[[], Response], *, scope: str, key: str, request_hash: str, now: datetime | None = None
) -> Response:
    """The answer of `work`, or the kept one of an earlier call with the same scope and key.

    An answer of 400 and above undoes what `work` wrote; one of 500 and above, 401, 403 or 429 is not kept.
    Raises KeyReused and KeyInProgress.
    """
    now = now or timezone.now()
    with transaction.atomic():
        _hold(scope, key)
        record = IdempotencyRecord.objects.filter(scope=scope, key=key).first()
        if record is not None and record.expires_at > now:
            return _replay(record, request_hash)
        with transaction.atomic():
            response = work()
            if response.status_code >= 400:
                transaction.set_rollback(True)
        if response.status_code < 500 and response.status_code not in _NEVER_KEPT:
            if record is not None:
                record.delete()
            _keep(response, scope=scope, key=key, request_hash=request_hash, now=now)
        return response


def _hold(scope: str, key: str) -> None:
    """Be the only one with this key until the transaction ends.

    On SQLite the transaction has held the one write lock since it began. PostgreSQL would let an INSERT of the same
    key wait for the first one's end; the advisory lock lets the second request be told at once.
    """
    if connection.vendor == "postgresql":
        number = int.from_bytes(hashlib.sha256(f"{scope}\n{key}".encode()).digest()[:8], signed=True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
            if not cursor.fetchone()[0]:
                raise _in_progress()


def _replay(record: IdempotencyRecord, request_hash: str) -> Response:
    if record.request_hash != request_hash:
        raise KeyReused(f"This {HEADER} was used for another request; take a new key for a new request.")
    response = Response(record.response_body, status=record.response_status, headers={REPLAYED_HEADER: "true"})
    if record.response_location:
        response["Location"] = record.response_location
    if record.response_status >= 400:
        response.content_type = "application/problem+json"
    return response


def _keep(response: Response, *, scope: str, key: str, request_hash: str, now: datetime) -> None:
    body = None if response.data is None else json.loads(JSONRenderer().render(response.data))
    try:
        IdempotencyRecord.objects.create(
            scope=scope,
            key=key,
            request_hash=request_hash,
            response_status=response.status_code,
            response_body=body,
            response_location=response.headers.get("Location", ""),
            created_at=now,
            expires_at=now + timedelta(hours=conf().idempotency_hours),
        )
    except IntegrityError:  # the unique constraint: somebody was first whom the lock did not show
        raise _in_progress() from None


def _in_progress() -> KeyInProgress:
    return KeyInProgress(f"The first request with this {HEADER} is still being worked on; repeat it a little later.")


def request_hash(method: str, path: str, body: Any) -> str:
    """What two requests must share to be the same one: method, path and body, whatever the order of its fields."""
    text = msgspec.json.encode(body, order="sorted")
    return hashlib.sha256(b"\n".join([method.encode(), path.rstrip("/").encode(), text])).hexdigest()


class Idempotent(APIView):
    """Mixin: honours `Idempotency-Key` on every changing method of the view, after authentication and permissions.

    `changes` is False for views whose POST only asks.
    """

    changes: ClassVar[bool] = True

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Put `answer_once` around the handler of this request, if it carries a key."""
        super().initial(request, *args, **kwargs)
        key = request.headers.get(HEADER)
        if key is None and request.method in METHODS and self.changes and conf().idempotency_required:
            raise KeyMissing(f"Send the header {HEADER} with a new UUID, and the same one again when you repeat this.")
        if key is not None and request.method in METHODS:
            name = request.method.lower()
            handler = getattr(self, name, self.http_method_not_allowed)
            setattr(self, name, partial(self._answer_once, handler, key))

    def _answer_once(self, handler: Callable[..., Response], key: str, request: Request, /, **kwargs: Any) -> Response:
        if not (1 <= len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
            raise InvalidKey(f"{HEADER} must be 1 to {MAX_KEY_LENGTH} printable ASCII characters.")

        def work() -> Response:
            try:
                return handler(request, **kwargs)
            except Exception as error:
                if was_given_up(error):
                    raise
                return self.handle_exception(error)

        body = request.data.dict() if isinstance(request.data, QueryDict) else request.data
        return answer_once(
            work,
            scope=f"user:{request.user.pk}",
            key=key,
            request_hash=request_hash(request.method or "", request.path, body),
        )
