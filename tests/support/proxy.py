"""An HTTP proxy (RFC 9112, section 3.2; RFC 9110, section 9.3.6) with names of its own, and TLS in front of a port."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Proxy:
    """Passes on requests and tunnels to ports of this machine, by name; answers anything else with 502."""

    def __init__(self, hosts: dict[str, int], credentials: str = "") -> None:
        self.hosts, self.credentials = hosts, credentials
        """`user:password`, which every request must have."""
        self.port = 0
        self.refuses = 0
        """The status with which each request is answered, if it is not 0."""
        self.asked: list[str] = []
        """Request lines, without the version."""

    @property
    def address(self) -> str:
        return f"http://{self.credentials}{'@' * bool(self.credentials)}127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        answers: asyncio.Task[None] | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *headers = head.decode().removesuffix("\r\n\r\n").split("\r\n")
                method, target, _ = line.split(" ")
                self.asked.append(f"{method} {target}")
                given = dict(each.lower().split(": ", 1) for each in headers)
                body = await reader.readexactly(int(given.get("content-length", 0)))
                host = target.removeprefix("http://").partition("/")[0].partition(":")[0]
                wanted = f"basic {base64.b64encode(self.credentials.encode()).decode()}".lower()
                status = self.refuses or (407 if self.credentials and given.get("proxy-authorization") != wanted else 0)
                if status or host not in self.hosts:
                    writer.write(b"HTTP/1.1 %d Refused\r\nContent-Length: 2\r\n\r\nno" % (status or 502))
                    await writer.drain()
                    continue
                if upstream is None:
                    source, upstream = await asyncio.open_connection("127.0.0.1", self.hosts[host])
                    if method == "CONNECT":
                        writer.write(b"HTTP/1.1 200 Go ahead\r\n\r\n")
                    answers = asyncio.create_task(_pump(source, writer))
                if method == "CONNECT":
                    return await _pump(reader, upstream)
                assert target.startswith(f"http://{host}"), "a request to a proxy has the absolute form"
                path = "/" + target.removeprefix("http://").partition("/")[2]
                kept = [each for each in headers if not each.lower().startswith("proxy-")]
                upstream.write("\r\n".join([f"{method} {path} HTTP/1.1", *kept, "", ""]).encode() + body)
                await upstream.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if upstream is not None:
                upstream.close()
            if answers is not None:
                await answers
            writer.close()


@asynccontextmanager
async def proxying(hosts: dict[str, int], credentials: str = "") -> AsyncIterator[Proxy]:
    proxy = Proxy(hosts, credentials)
    async with listening(proxy.serve) as proxy.port:
        yield proxy


@asynccontextmanager
async def listening(handle: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that ends its connections with the block."""
    tasks: set[asyncio.Task[None]] = set()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handle(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(held, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks)


def certified(name: str, authority: Path) -> ssl.SSLContext:
    """What a server speaks TLS with as `name`; its certificate is written to a file."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    authority.write_bytes(made)
    authority.with_suffix(".key").write_bytes(key.private_bytes(*private))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority, authority.with_suffix(".key"))
    return context


@asynccontextmanager
async def with_tls(name: str, port: int, authority: Path) -> AsyncIterator[int]:
    """The port of a server that speaks TLS as `name`, and passes on to `port`."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source, upstream = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(reader, upstream), _pump(source, writer))

    async with listening(pass_on, certified(name, authority)) as listens:
        yield listens


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
