"""send_email against a real mail server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.builtin.mailserver import MailServer
from tests.unit.builtin.running import OCCURRENCE, Context, run
from tickwork.builtin.mail import Server, parse_server, send_email
from tickwork.errors import JobCancelled, PermanentError, RetryableError

MAIL: dict[str, Any] = {"to": ["Ann <ann@example.org>"], "subject": "Hello", "text": "Hi\n"}


async def test_the_mail_arrives_as_it_was_written(mail: MailServer) -> None:
    result = await run(
        send_email,
        to=["Zoë Å <zoe@example.org>", "bob@example.org"],
        cc=["cy@example.org"],
        bcc=["secret@example.org", "bob@example.org"],
        subject="Grüße — 3 > 2",
        text="Hällo\n.a line that begins with a dot\n",
        html="<p>Hällo</p>",
    )
    (sent,) = mail.mails
    assert sent.sender == "jobs@example.org"
    assert sent.recipients == ["zoe@example.org", "bob@example.org", "cy@example.org", "secret@example.org"]
    assert sent.message["From"] == "Tickwork <jobs@example.org>"
    assert sent.message["To"] == "Zoë Å <zoe@example.org>, bob@example.org"
    assert sent.message["Subject"] == "Grüße — 3 > 2"
    assert sent.message["Auto-Submitted"] == "auto-generated"
    assert b"secret@example.org" not in sent.raw
    assert sent.raw.isascii()
    text, html = sent.message.iter_parts()
    assert text.get_content() == "Hällo\r\n.a line that begins with a dot\r\n"
    assert html.get_content().strip() == "<p>Hällo</p>"
    assert result == {"message_id": sent.message["Message-ID"], "recipients": 4}


async def test_every_attempt_of_an_occurrence_has_the_same_message_id(mail: MailServer) -> None:
    await run(send_email, **MAIL)
    await run(send_email, **MAIL)
    ids = {sent.message["Message-ID"] for sent in mail.mails}
    assert ids == {f"<{OCCURRENCE}.tickwork@example.org>"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject", "Hello\r\nBcc: victim@example.org"),
        ("subject", "Hello\nX: y"),
        ("to", ["ann@example.org\nBcc: victim@example.org"]),
        ("to", ["ann@example.org, victim@example.org"]),
        ("to", ["ann"]),
        ("to", [""]),
        ("to", ["Ann <>"]),
        ("cc", ["a@b\r\nDATA"]),
        ("bcc", ["<a@example.org> RCPT TO:<b@example.org>"]),
    ],
)
async def test_a_field_that_is_not_what_it_claims_is_refused_and_named(
    mail: MailServer, field: str, value: object
) -> None:
    with pytest.raises(PermanentError, match=f"^{field}: "):
        await run(send_email, **{**MAIL, field: value})
    assert mail.mails == []


async def test_the_settings_are_named_when_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermanentError, match="set TICKWORK_SMTP_URL on the worker"):
        await run(send_email, **MAIL)
    monkeypatch.setenv("TICKWORK_SMTP_URL", "smtp://127.0.0.1:9")
    with pytest.raises(PermanentError, match="set TICKWORK_EMAIL_FROM on the worker"):
        await run(send_email, **MAIL)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("smtp://h", Server("h", 587, "", "", "starttls")),
        ("smtp://h:465", Server("h", 465, "", "", "ssl")),
        ("smtp://h?tls=ssl", Server("h", 465, "", "", "ssl")),
        ("smtp://h?tls=none", Server("h", 25, "", "", "none")),
        ("smtp://u%40x:p%2Fw@h:2525", Server("h", 2525, "u@x", "p/w", "starttls")),
    ],
)
def test_the_url_says_how_to_connect(url: str, server: Server) -> None:
    assert parse_server(url) == server


@pytest.mark.parametrize(
    "url", ["http://u:hidden@h", "smtp://", "smtp://u:hidden@h:x", "smtp://u:hidden@h?tls=maybe", "hidden"]
)
def test_a_url_that_is_wrong_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(PermanentError, match="TICKWORK_SMTP_URL") as caught:
        parse_server(url)
    assert "hidden" not in str(caught.value)


async def test_user_and_password_are_used_and_a_refused_login_is_permanent(
    mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.extensions.append("AUTH PLAIN")
    monkeypatch.setenv("TICKWORK_SMTP_URL", f"smtp://ann:hidden@127.0.0.1:{mail.port}?tls=none")
    await run(send_email, **MAIL)
    assert mail.logins == ["\0ann\0hidden"]
    mail.replies["AUTH"] = "535 5.7.8 wrong"
    with pytest.raises(PermanentError, match="login of TICKWORK_SMTP_URL: 535") as caught:
        await run(send_email, **MAIL)
    assert "hidden" not in str(caught.value)


async def test_a_server_without_the_wanted_tls_gets_neither_password_nor_mail(
    mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.extensions.append("AUTH PLAIN")
    monkeypatch.setenv("TICKWORK_SMTP_URL", f"smtp://ann:hidden@127.0.0.1:{mail.port}")
    with pytest.raises(PermanentError, match="tls= in TICKWORK_SMTP_URL"):
        await run(send_email, **MAIL)
    assert (mail.logins, mail.mails) == ([], [])


@pytest.mark.parametrize("command", ["", "mail FROM", "rcpt TO", "data", "end of data"])
async def test_5xx_is_permanent_and_4xx_is_retryable_at_every_step(mail: MailServer, command: str) -> None:
    mail.replies[command] = "554 5.7.1 never"
    with pytest.raises(PermanentError, match="never"):
        await run(send_email, **MAIL)
    mail.replies[command] = "451 4.7.1 greylisted"
    with pytest.raises(RetryableError, match="greylisted"):
        await run(send_email, **MAIL)


async def test_one_refused_recipient_means_that_nobody_gets_the_mail(mail: MailServer) -> None:
    mail.replies["rcpt TO:<gone@"] = "550 no such user"
    with pytest.raises(PermanentError, match=r"nobody got the mail: gone@example\.org: 550 no such user"):
        await run(send_email, **{**MAIL, "to": ["ann@example.org", "gone@example.org"]})
    assert mail.mails == []


async def test_a_server_that_hangs_up_or_is_away_is_retryable(
    mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.replies["rcpt TO"] = "hang up"
    with pytest.raises(RetryableError, match="hung up"):
        await run(send_email, **MAIL)
    with MailServer() as gone:
        monkeypatch.setenv("TICKWORK_SMTP_URL", f"smtp://127.0.0.1:{gone.port}?tls=none")
    with pytest.raises(RetryableError, match="cannot be reached"):
        await run(send_email, **MAIL)


async def test_a_server_that_hangs_up_after_accepting_has_accepted(mail: MailServer) -> None:
    mail.replies["quit"] = "hang up"
    result = await run(send_email, **MAIL)
    assert result["recipients"] == 1


async def test_addresses_beyond_ascii_need_a_server_that_knows_them(mail: MailServer) -> None:
    data = {**MAIL, "to": ["zoë@example.org"]}
    with pytest.raises(PermanentError, match="non-ASCII"):
        await run(send_email, **data)
    mail.extensions.append("SMTPUTF8")
    await run(send_email, **data)
    assert mail.mails[0].message["To"] == "zoë@example.org"


async def test_a_cancelled_mail_is_not_sent(mail: MailServer) -> None:
    ctx = Context()
    ctx.cancel("by a person")
    with pytest.raises(JobCancelled):
        await run(send_email, ctx=ctx, **MAIL)
    assert mail.mails == []
