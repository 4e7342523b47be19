"""A server of HTTP on loopback that behaves as cameras and file servers do."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# From a path to a code, a content type, and the parts of a body.
Answer = Callable[[str], tuple[int, str, Iterator[bytes]]]


class Web:
    """asked: the paths that were asked for, in their order. schemes: by which a user was named.
    login: `USER:PASSWORD` by basic authentication, `digest` for whoever comes by that. cut: bytes
    after which a body of a known length breaks off; 0: never."""

    def __init__(self, answer: Answer, login: str = "", cut: int = 0) -> None:
        self.asked: list[str] = []
        self.schemes: set[str] = set()
        self.is_digest = login == "digest"
        self.answer = answer
        self.login = base64.b64encode(login.encode()).decode() if login else ""
        self.cut = cut
        self.url = ""


@contextmanager
def serving(web: Web) -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.asked.append(self.path)
            given = self.headers.get("Authorization") or ""
            web.schemes |= {given.partition(" ")[0]} - {""}
            good = given.startswith("Digest ") if web.is_digest else given == f"Basic {web.login}"
            if web.login and not good:
                how = 'Digest realm="camera", nonce="1", qop="auth"'
                self.send_response(401)
                self.send_header("WWW-Authenticate", how if web.is_digest else 'Basic realm="c"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            code, kind, parts = web.answer(self.path)
            self.send_response(code)
            self.send_header("Content-Type", kind)
            if not kind.startswith("multipart"):
                body = b"".join(parts)
                self.send_header("Content-Length", str(len(body)))
                parts = iter([body[: web.cut or len(body)]])
            self.end_headers()
            try:
                for part in parts:
                    self.wfile.write(part)
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                return  # whoever asked has gone

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
