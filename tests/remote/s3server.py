"""Enough of the S3 API over HTTP for clients to list, read, write and delete objects."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from .server import QuietHandler, listening

Fault = Callable[[int, str, str], bool]
"""Of the number of the request, its method and its key: whether it is answered with 503."""


@dataclass
class S3Server:
    """A running server.

    Attributes:
        url: of the API.
        buckets: content of every object by bucket and key.
        asked: (method, key) of every request; parts of objects as "PART".
        parts: content of the parts of every unfinished upload.
        uploads: key of every multipart upload.
        fault: see `Fault`.
    """

    url: str
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    fault: Fault = lambda number, method, key: False
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    uploads: dict[str, str] = field(default_factory=dict)

    @property
    def storage_options(self) -> dict[str, Any]:
        """What a client needs to come here; it leaves repeating requests to its caller."""
        return {
            "endpoint_url": self.url,
            "key": "someone",
            "secret": "secret",
            "skip_instance_cache": True,
            "config_kwargs": {"retries": {"max_attempts": 0}},
        }

    def sent(self) -> list[str]:
        """Keys of the objects that were written, in the order of the requests."""
        return [key for method, key in self.asked if method == "PUT"]


@contextmanager
def s3_serving(*buckets: str) -> Iterator[S3Server]:
    """Serve empty buckets on a free port of this machine."""
    lock = threading.Lock()

    class Handler(QuietHandler):
        def do_any(self) -> None:
            parts = urlsplit(self.path)
            bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
            query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
            body = self.body()
            method = "PART" if "partNumber" in query else self.command
            with lock:
                server.asked.append((method, key))
                number = len(server.asked)
                objects = server.buckets.get(bucket)
            if server.fault(number, method, key):
                self.error(503, "ServiceUnavailable", "Come back later.")
            elif objects is None:
                self.error(404, "NoSuchBucket", "The specified bucket does not exist")
            elif "uploads" in query and self.command == "GET":
                self.list_uploads(query.get("prefix", ""))
            elif "list-type" in query:
                self.list(bucket, objects, query)
            else:
                getattr(self, f"on_{self.command.lower()}")(objects, key, query, body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815  # as the base class calls them

        def on_get(self, objects: dict[str, bytes], key: str, *_: Any) -> None:
            data = objects.get(key)
            if data is None:
                return self.error(404, "NoSuchKey", "The specified key does not exist.")
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if span is None:
                return self.send(200, data, ETag=etag(data))
            first, last = int(span[1]), min(int(span[2] or len(data)), len(data) - 1)
            where = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            return self.send(206, data[first : last + 1], ETag=etag(data), **where)

        on_head = on_get

        def on_put(
            self, objects: dict[str, bytes], key: str, query: dict[str, str], body: bytes
        ) -> None:
            if "partNumber" in query:
                server.parts[query["uploadId"]][int(query["partNumber"])] = body
            elif source := self.headers.get("x-amz-copy-source"):
                objects[key] = objects[unquote(source).lstrip("/").partition("/")[2]]
                return self.xml("CopyObjectResult", f"<ETag>{etag(objects[key])}</ETag>")
            else:
                objects[key] = body
            return self.send(200, ETag=etag(body))

        def on_post(
            self, objects: dict[str, bytes], key: str, query: dict[str, str], body: bytes
        ) -> None:
            if "uploads" in query:
                with lock:
                    upload = f"upload-{len(server.parts)}"
                    server.parts[upload], server.uploads[upload] = {}, key
                return self.xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            parts = server.parts.pop(query["uploadId"])
            named = [int(n) for n in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
            objects[key] = b"".join(parts[number] for number in named)
            return self.xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key>")

        def on_delete(
            self, objects: dict[str, bytes], key: str, query: dict[str, str], _: bytes
        ) -> None:
            if "uploadId" in query:
                server.parts.pop(query["uploadId"], None)
            else:
                objects.pop(key, None)
            self.send(204)

        def list(self, bucket: str, objects: dict[str, bytes], query: dict[str, str]) -> None:
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
            files, folders = [], set()
            for key in sorted(key for key in objects if key.startswith(prefix)):
                rest = key.removeprefix(prefix)
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    files.append(key)
            content = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size>"
                f"<ETag>{escape(etag(objects[key]))}</ETag><StorageClass>STANDARD</StorageClass>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key in files
            ) + "".join(
                f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                for name in sorted(folders)
            )
            self.xml(
                "ListBucketResult",
                f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
                f"<KeyCount>{len(files) + len(folders)}</KeyCount>"
                f"<IsTruncated>false</IsTruncated>{content}",
            )

        def list_uploads(self, prefix: str) -> None:
            content = "".join(
                f"<Upload><Key>{escape(key)}</Key><UploadId>{upload}</UploadId></Upload>"
                for upload, key in server.uploads.items()
                if upload in server.parts and key.startswith(prefix)
            )
            self.xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{content}")

        def body(self) -> bytes:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
                return data
            content = b""
            while data:
                head, _, data = data.partition(b"\r\n")
                size = int(head.partition(b";")[0], 16)
                if size == 0:
                    break
                content, data = content + data[:size], data[size + 2 :]
            return content

        def xml(self, name: str, content: str, status: int = 200) -> None:
            text = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{content}</{name}>'
            self.send(status, text.encode(), **{"Content-Type": "application/xml"})

        def error(self, status: int, code: str, message: str) -> None:
            self.xml("Error", f"<Code>{code}</Code><Message>{message}</Message>", status)

        def send(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    with listening(Handler) as url:
        server = S3Server(url=url)
        server.buckets = {name: {} for name in buckets}
        yield server


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
