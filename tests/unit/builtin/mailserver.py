"""A mail server that speaks just enough SMTP, answers what the test has laid out and keeps the mail."""

from __future__ import annotations

import base64
import socketserver
import threading
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage


@dataclass
class Mail:
    sender: str
    recipients: list[str] = field(default_factory=list)
    message: EmailMessage = field(default_factory=EmailMessage)
    raw: bytes = b""


class MailServer:
    """`replies["rcpt TO:<x@y>"] = "550 no"` replaces the answer to a command that begins so.

    The key "" is the greeting, "end of data" the answer to a whole mail; the reply "hang up" does that.
    """

    def __init__(self) -> None:
        self.replies: dict[str, str] = {}
        self.mails: list[Mail] = []
        self.logins: list[str] = []
        self.extensions: list[str] = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def say(self, line: str) -> None:
                self.wfile.write(line.encode() + b"\r\n")

            def handle(self) -> None:
                self.say(server.replies.get("", "220 test"))
                mail = Mail("")
                while line := self.rfile.readline().decode().rstrip("\r\n"):
                    verb = line.split(" ")[0].upper()
                    laid_out = next(
                        (reply for start, reply in server.replies.items() if start and line.startswith(start)), ""
                    )
                    if laid_out == "hang up":
                        return
                    if laid_out:
                        self.say(laid_out)
                    elif verb == "EHLO":
                        self.say("250-test")
                        self.wfile.write(b"".join(f"250-{name}\r\n".encode() for name in server.extensions))
                        self.say("250 SIZE")
                    elif verb == "AUTH":
                        server.logins.append(base64.b64decode(line.split(" ")[2]).decode())
                        self.say("235 welcome")
                    elif verb == "MAIL":
                        mail = Mail(line.removeprefix("mail FROM:").split(">")[0].strip("<"))
                        self.say("250 ok")
                    elif verb == "RCPT":
                        mail.recipients.append(line.removeprefix("rcpt TO:").strip("<>"))
                        self.say("250 ok")
                    elif verb == "DATA":
                        self.say("354 go on")
                        self.keep(mail)
                        self.say(server.replies.get("end of data", "250 queued"))
                    elif verb == "QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 ok")

            def keep(self, mail: Mail) -> None:
                lines = []
                while (line := self.rfile.readline()) not in (b".\r\n", b""):
                    lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
                mail.raw = b"".join(lines)
                mail.message = message_from_bytes(mail.raw, policy=policy.default)
                server.mails.append(mail)

        class Quiet(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that hangs up early is part of the tests."""

        self._tcp = Quiet(("127.0.0.1", 0), Handler)
        self.port = self._tcp.server_address[1]
        self._thread = threading.Thread(target=self._tcp.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> MailServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tcp.shutdown()
        self._thread.join()
        self._tcp.server_close()
