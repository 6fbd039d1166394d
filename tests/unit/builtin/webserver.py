"""A web server that answers what the test has laid out, and remembers what it was asked."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext


@dataclass
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Asked:
    method: str
    path: str
    headers: Message
    body: bytes


class WebServer:
    """Lay out answers with `server.answers["/path"] = Answer(…)`; a path in `stalled` gets none until the end."""

    def __init__(self, tls: SSLContext | None = None) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[Asked] = []
        self.stalled: set[str] = set()
        self.stalling = threading.Event()
        self._ending = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                server.asked.append(Asked(self.command, self.path, self.headers, self.rfile.read(length)))
                if self.path in server.stalled:
                    server.stalling.set()
                    server._ending.wait()
                answer = server.answers.get(self.path.partition("?")[0], Answer(404))
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that hangs up early is part of the tests."""

        self._http = Quiet(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def host_and_port(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://{self.host_and_port}{path}"

    def __enter__(self) -> WebServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
