"""The job type send_email: one mail through the server of the worker's settings.

Registered by `tickwork.builtin`. All recipients or none: when the server refuses one address, nobody gets the
mail, so that another attempt cannot send it twice to the others. Each attempt of an occurrence carries the
same Message-ID, by which mail systems recognise the repeat that a lost answer can cause.
"""

import contextlib
import re
import smtplib
import ssl
from collections.abc import Iterator
from email import policy
from email.errors import NonASCIILocalPartDefect
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import localtime
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Meta

from tickwork import JobContext
from tickwork.builtin import settings
from tickwork.builtin.text import MULTILINE
from tickwork.errors import JobError, PermanentError, RetryableError

TIMEOUT_SECONDS = 30.0

_PORTS = {"starttls": 587, "ssl": 465, "none": 25}
# Bodies are sent as 7-bit text: every server takes that.
_POLICY = policy.SMTP.clone(cte_type="7bit")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Server(NamedTuple):
    """Where and how mail is handed over; `tls` is starttls, ssl or none."""

    host: str
    port: int
    user: str
    password: str
    tls: str


def send_email(
    ctx: JobContext,
    to: Annotated[list[str], Meta(min_length=1, max_length=100, description="Addresses, also as: Name <address>")],
    subject: Annotated[str, Meta(max_length=500, description="Subject line")],
    text: Annotated[str, Meta(description="Body as plain text", extra_json_schema=MULTILINE)] = "",
    html: Annotated[
        str, Meta(description="Body as HTML, shown instead of the text where possible", extra_json_schema=MULTILINE)
    ] = "",
    cc: Annotated[list[str] | None, Meta(description="Addresses that get a copy")] = None,
    bcc: Annotated[list[str] | None, Meta(description="Addresses that get a copy unseen by the others")] = None,
) -> dict[str, Any]:
    """Send one mail; the server and the sender are settings of the worker."""
    server = parse_server(
        settings.required(settings.SMTP_URL, "smtp://user:password@mail.example.org:587?tls=starttls")
    )
    sender = parse_sender(settings.required(settings.EMAIL_FROM, "Tickwork <tickwork@example.org>"))
    shown_to = [_address("to", item) for item in to]
    copied_to = [_address("cc", item) for item in cc or []]
    hidden_to = [_address("bcc", item) for item in bcc or []]
    message = _message(ctx.idempotency_key, sender, shown_to, copied_to, subject, text, html)
    recipients = list(dict.fromkeys(entry.addr_spec for entry in shown_to + copied_to + hidden_to))
    ctx.raise_if_cancelled()
    with _translated_errors(server), _connected(server) as connection:
        _hand_over(connection, sender.addr_spec, recipients, message)
    ctx.log.info("accepted by the mail server", recipients=len(recipients), message_id=message["Message-ID"])
    return {"message_id": message["Message-ID"], "recipients": len(recipients)}


# ── the message ────────────────────────────────────────────────────────────────────────────────────


def _address(field: str, text: str) -> Address:
    """Exactly one address. Raises PermanentError that names the field."""
    if not _CONTROL.search(text):
        header: Any = policy.SMTP.header_factory("to", text)
        found: tuple[Address, ...] = header.addresses
        wrong = [defect for defect in header.defects if not isinstance(defect, NonASCIILocalPartDefect)]
        if len(found) == 1 and found[0].username and found[0].domain and not wrong:
            return found[0]
    raise PermanentError(f"{field}: {text!r} is not one mail address")


def _message(
    key: str, sender: Address, to: list[Address], cc: list[Address], subject: str, text: str, html: str
) -> EmailMessage:
    if _CONTROL.search(subject):
        raise PermanentError("subject: line ends and other control characters are not allowed")
    message = EmailMessage(policy=_POLICY)
    message["From"] = sender
    message["To"] = to
    if cc:
        message["Cc"] = cc
    message["Subject"] = subject
    message["Date"] = localtime()
    message["Message-ID"] = f"<{re.sub(r'[^A-Za-z0-9.-]', '-', key)}.tickwork@{sender.domain}>"
    message["Auto-Submitted"] = "auto-generated"
    if html:
        message.set_content(text or "This message is shown by mail programs that show HTML.")
        message.add_alternative(html, subtype="html")
    else:
        message.set_content(text)
    return message


# ── the server ─────────────────────────────────────────────────────────────────────────────────────


def parse_server(url: str) -> Server:
    """Read the setting's URL. Raises PermanentError that says what is wrong without repeating the value."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise PermanentError(f"the worker's setting {settings.SMTP_URL} is not a valid URL") from None
    if parts.scheme != "smtp" or not parts.hostname:
        raise PermanentError(f"the worker's setting {settings.SMTP_URL} must look like smtp://host:port?tls=starttls")
    tls = parse_qs(parts.query).get("tls", ["ssl" if port == _PORTS["ssl"] else "starttls"])[-1]
    if tls not in _PORTS:
        raise PermanentError(f"the worker's setting {settings.SMTP_URL}: tls must be starttls, ssl or none")
    return Server(
        parts.hostname, port or _PORTS[tls], unquote(parts.username or ""), unquote(parts.password or ""), tls
    )


def parse_sender(text: str) -> Address:
    """Read the sender's setting. Raises PermanentError that names it."""
    return _address(f"the worker's setting {settings.EMAIL_FROM}", text)


@contextlib.contextmanager
def _connected(server: Server) -> Iterator[smtplib.SMTP]:
    tls = ssl.create_default_context()
    connection = (
        smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_SECONDS, context=tls)
        if server.tls == "ssl"
        else smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_SECONDS)
    )
    try:
        if server.tls == "starttls":
            connection.starttls(context=tls)
        if server.user:
            connection.login(server.user, server.password)
        yield connection
        # The mail is accepted: a server that hangs up early takes nothing of that back.
        with contextlib.suppress(smtplib.SMTPException, OSError):
            connection.quit()
    finally:
        connection.close()


def _hand_over(connection: smtplib.SMTP, sender: str, recipients: list[str], message: EmailMessage) -> None:
    """The dialogue of one mail: every recipient is asked for before the content is sent."""
    connection.ehlo_or_helo_if_needed()
    options: list[str] = []
    policy_of_message = _POLICY
    if not all(address.isascii() for address in (sender, *recipients)):
        if not connection.has_extn("smtputf8"):
            raise PermanentError("an address holds non-ASCII characters, which the mail server does not support")
        options = ["SMTPUTF8"]
        policy_of_message = _POLICY.clone(utf8=True)
    code, reply = connection.mail(sender, options)
    if code != 250:
        raise smtplib.SMTPSenderRefused(code, reply, sender)
    refused: dict[str, tuple[int, bytes]] = {}
    for address in recipients:
        code, reply = connection.rcpt(address)
        if code not in (250, 251):
            refused[address] = (code, reply)
    if refused:
        raise smtplib.SMTPRecipientsRefused(refused)
    code, reply = connection.data(message.as_bytes(policy=policy_of_message))
    if code != 250:
        raise smtplib.SMTPDataError(code, reply)


@contextlib.contextmanager
def _translated_errors(server: Server) -> Iterator[None]:
    """SMTP's own distinction decides about another attempt: 5xx is permanent, 4xx is passing."""
    place = f"mail server {server.host}:{server.port}"
    try:
        yield
    except smtplib.SMTPRecipientsRefused as error:
        said = "; ".join(f"{address}: {_reply(code, reply)}" for address, (code, reply) in error.recipients.items())
        permanent = any(code >= 500 for code, _ in error.recipients.values())
        kind = PermanentError if permanent else RetryableError
        raise kind(f"{place} refused, so nobody got the mail: {said}") from None
    except smtplib.SMTPAuthenticationError as error:
        kind = PermanentError if error.smtp_code >= 500 else RetryableError
        raise kind(f"{place} refused the login of {settings.SMTP_URL}: {_reply(*error.args[:2])}") from None
    except smtplib.SMTPResponseException as error:
        kind = PermanentError if error.smtp_code >= 500 else RetryableError
        raise kind(f"{place} refused: {_reply(error.smtp_code, error.smtp_error)}") from None
    except smtplib.SMTPNotSupportedError as error:
        raise PermanentError(f"{place}: {error} (see tls= in {settings.SMTP_URL})") from None
    except ssl.SSLError as error:
        raise JobError(f"{place}: TLS failed: {error}") from error
    except (smtplib.SMTPException, OSError) as error:
        raise RetryableError(f"{place} cannot be reached or hung up: {error}") from error


def _reply(code: int, reply: bytes | str) -> str:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    return f"{code} {' '.join(text.split())}"[:500]
