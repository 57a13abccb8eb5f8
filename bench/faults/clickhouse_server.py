"""ClickHouse's HTTP interface over the chDB engine, as a process that can be killed: `... clickhouse_server FOLDER PORT`.

Enough of it for `clickhouse-connect`: one statement at a time, settings and parameters in the query string, inserts with a body.
The engine, its parts, its deduplication and its errors are ClickHouse's own.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import chdb
from clickhouse_connect.driver._backend.chdb_backend import _decompress, _quote_setting_value

_NO_SETTING = {
    "query", "database", "query_id", "session_id", "session_timeout", "session_check", "compress", "decompress",
    "wait_end_of_query", "client_protocol_version", "role", "user", "password", "quota_key", "buffer_size",
    "send_progress_in_http_headers", "http_headers_progress_interval_ms", "enable_http_compression", "default_format",
    "readonly",  # it could not be taken back: one connection serves everybody
}  # fmt: skip
_INSERT = re.compile(r"^\s*insert\s+into\s+.*?\bformat\s+(\w+)\s*;?\s*$", re.IGNORECASE | re.DOTALL)
_INSERT_LINE = re.compile(rb"(\s*insert\s+into\s+[^\n]*?\bformat\s+\w+)[ ;]*\n", re.IGNORECASE)
_FORMAT = re.compile(r"\bformat\s+(\w+)\s*;?\s*$", re.IGNORECASE)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    engine: Any = None
    turn = threading.Lock()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path.startswith("/ping"):
            self._answer(200, b"Ok.\n")
        else:
            self._run(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = bytearray()
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            self._run(bytes(body))
        else:
            self._run(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _run(self, body: bytes) -> None:
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True))
        encoding = self.headers.get("Content-Encoding")
        if encoding and body:
            body = _decompress(body, encoding)
        sql, data = asked.get("query", ""), body or None
        if not sql:
            line = _INSERT_LINE.match(body)
            sql, data = (line[1].decode(), body[line.end() :]) if line else (body.decode(), None)
        settings = {k: v for k, v in asked.items() if k not in _NO_SETTING and not k.startswith("param_")}
        parameters = {k[6:]: v for k, v in asked.items() if k.startswith("param_")}
        wanted = _FORMAT.search(sql)
        shape = asked.get("default_format") or self.headers.get("X-ClickHouse-Format") or "TabSeparated"
        if wanted and data is None:
            shape = wanted[1]
        with self.turn:
            try:
                found = self._execute(asked.get("database") or "default", sql, data, settings, parameters, shape)
            except Exception as exc:  # whatever the engine says is the answer
                code = re.search(r"Code: (\d+)", str(exc))
                self._answer(500, str(exc).encode(), [("X-ClickHouse-Exception-Code", code[1] if code else "1002")])
                return
        self._answer(200, found, [("X-ClickHouse-Format", shape), ("X-ClickHouse-Summary", "{}")])

    def _execute(
        self, database: str, sql: str, data: bytes | None, settings: dict[str, str], parameters: dict[str, str], shape: str
    ) -> bytes:
        engine = self.engine
        engine.query(f"USE `{database}`")
        for name, value in settings.items():
            engine.query(f"SET {name}={_quote_setting_value(value)}")
        try:
            if data is not None and _INSERT.match(sql):
                with tempfile.NamedTemporaryFile() as file:
                    file.write(data)
                    file.flush()
                    engine.query(_FORMAT.sub(lambda m: f"FROM INFILE '{file.name}' FORMAT {m[1]}", sql))
                return b""
            result = engine.query(sql, shape, params=parameters) if parameters else engine.query(sql, shape)
            return result.bytes() if result is not None and hasattr(result, "bytes") else b""
        finally:
            for name in settings:
                engine.query(f"SET {name}=DEFAULT")

    def _answer(self, code: int, body: bytes, headers: list[tuple[str, str]] | None = None) -> None:
        self.send_response(code)
        for name, value in headers or []:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def main() -> None:
    """Serve until killed."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    Handler.engine = chdb.connect(str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    print("up", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
