"""The peer that is grpcio (its C core, through asyncio), with messages as bytes. ../../protocol.ts says what it is told."""

import asyncio
import base64
import json
import sys
import zlib

import grpc
import grpc.aio

SERVICE = "openshell.test.v1.Echo"
METHOD = {"unary": "Unary", "server": "ServerStream", "client": "ClientStream", "bidi": "Bidi"}
MAX_TEXT = 2048


def emit(event):
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def patterned(size, seed):
    period = bytes((seed * 31 + i * 7) & 255 for i in range(min(size, 256)))
    return (period * (size // 256 + 1))[:size]


def encode(payload):
    if not payload:
        return b""
    head, length = [0x0A], len(payload)
    while length > 127:
        head.append((length & 127) | 128)
        length >>= 7
    return bytes([*head, length]) + payload


def decode(message):
    if not message:
        return b""
    at = 1
    while message[at] & 128:
        at += 1
    return message[at + 1 :]


def to_metadata(entries):
    return [(key, base64.b64decode(value) if key.endswith("-bin") else value) for key, value in entries]


def from_metadata(metadata):
    return [
        [key, base64.b64encode(value).decode() if isinstance(value, bytes) else value] for key, value in metadata or ()
    ]


async def lines():
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


# --- client


class Call:
    def __init__(self, channel, start):
        self.id, self.start, self.channel = start["id"], start, channel
        self.sends, self.reads = asyncio.Queue(), asyncio.Semaphore(start.get("reads", 1 << 30))
        self.call = None
        self.task = asyncio.create_task(self.run())

    def message(self, message):
        payload = decode(message)
        event = {"id": self.id, "event": "message", "length": len(payload), "crc": zlib.crc32(payload)}
        if len(payload) <= MAX_TEXT:
            event["text"] = payload.decode(errors="replace")
        emit(event)

    async def run(self):
        kind = self.start["kind"]
        options = {"metadata": to_metadata(self.start["metadata"])}
        if "deadlineMs" in self.start:
            options["timeout"] = self.start["deadlineMs"] / 1000
        if self.start.get("gzip"):
            options["compression"] = grpc.Compression.Gzip
        path = f"/{SERVICE}/{METHOD[kind]}"
        make = {
            "unary": self.channel.unary_unary,
            "server": self.channel.unary_stream,
            "client": self.channel.stream_unary,
            "bidi": self.channel.stream_stream,
        }[kind](path)
        if kind in ("unary", "server"):
            _, size, seed = await self.sends.get()
            self.call = make(encode(patterned(size, seed)), **options)
        else:
            self.call = make(**options)
            sender = asyncio.create_task(self.send())
        try:
            headers = asyncio.create_task(self.headers())
            if kind in ("unary", "client"):
                self.message(await self.call)
            else:
                while True:
                    await self.reads.acquire()
                    message = await self.call.read()
                    if message is grpc.aio.EOF:
                        break
                    self.message(message)
        except (grpc.aio.AioRpcError, asyncio.CancelledError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass
        code, details = await self.call.code(), await self.call.details()
        await headers
        if kind in ("client", "bidi"):
            sender.cancel()
        trailers = from_metadata(await self.call.trailing_metadata())
        emit({"id": self.id, "event": "end", "code": code.value[0], "message": details or "", "trailers": trailers})

    async def headers(self):
        try:
            metadata = await self.call.initial_metadata()
            emit({"id": self.id, "event": "headers", "metadata": from_metadata(metadata)})
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass

    async def send(self):
        total = 0
        try:
            while True:
                count, size, seed = await self.sends.get()
                if count == 0:
                    await self.call.done_writing()
                    return
                for n in range(count):
                    await self.call.write(encode(patterned(size, seed + n)))
                    total += 1
                    emit({"id": self.id, "event": "sent", "total": total})
        except (grpc.aio.AioRpcError, asyncio.CancelledError, asyncio.InvalidStateError):
            pass

    def handle(self, op):
        if op["op"] == "send":
            self.sends.put_nowait((op["count"], op["size"], op["seed"]))
        elif op["op"] == "close":
            self.sends.put_nowait((0, 0, 0))
        elif op["op"] == "cancel":
            self.call.cancel()
            self.reads.release()
        elif op["op"] == "read":
            for _ in range(op["count"]):
                self.reads.release()


async def client(config):
    options = []
    if "keepaliveMs" in config:
        options = [
            ("grpc.keepalive_time_ms", config["keepaliveMs"]),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]
    if "tls" in config:
        tls = {name: text.encode() for name, text in config["tls"].items()}
        credentials = grpc.ssl_channel_credentials(tls["ca"], tls["key"], tls["cert"])
        channel = grpc.aio.secure_channel(config["address"], credentials, options=options)
    else:
        channel = grpc.aio.insecure_channel(config["address"], options=options)
    calls = {}
    async for op in lines():
        if op["op"] == "start":
            calls[op["id"]] = Call(channel, op)
        else:
            calls[op["id"]].handle(op)


# --- server

RECORDS, GATES = {}, {}


def gate(name):
    return GATES.setdefault(name, asyncio.Event())


class Handling:
    def __init__(self, context):
        self.context = context
        self.metadata = list(context.invocation_metadata())
        remaining = context.time_remaining()
        names = context.auth_context().get("x509_common_name", [b""])
        self.trailers = []
        self.finished = False
        self.report = {
            "started": True,
            "done": False,
            "cancelled": False,
            "received": 0,
            "sent": 0,
            "halfClosed": False,
            "deadlineMs": None if remaining is None else remaining * 1000,
            "peerName": names[0].decode(),
        }
        if (tag := self.text("tag")) is not None:
            RECORDS[tag] = self.report

    def text(self, key):
        return next((value for name, value in self.metadata if name == f"do-{key}"), None)

    def number(self, key):
        value = self.text(key)
        return None if value is None else int(value)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.report["cancelled"] = not self.finished
        self.report["done"] = True

    async def begin(self):
        if self.text("echo-metadata") is not None:
            own = [(key[2:], value) for key, value in self.metadata if key.startswith("x-")]
            self.trailers = [(f"t-{key}", value) for key, value in own]
            await self.context.send_initial_metadata([(f"h-{key}", value) for key, value in own])
        if (held := self.text("hold")) is not None:
            await gate(held).wait()

    async def fail_if_told(self):
        code = self.number("fail")
        if code is None or self.report["sent"] < (self.number("fail-after") or 0):
            return
        self.finished = True
        if (details := self.text("details-bin")) is not None:
            self.trailers.append(("grpc-status-details-bin", details))
        status = next(one for one in grpc.StatusCode if one.value[0] == code)
        text = (self.text("message-bin") or b"").decode()
        await self.context.abort(status, text, tuple(self.trailers))

    async def finish(self):
        await self.fail_if_told()
        self.finished = True
        self.context.set_trailing_metadata(tuple(self.trailers))

    async def send(self, payload):
        self.report["sent"] += 1
        await self.context.write(encode(payload))


async def unary(request, context):
    metadata = dict(context.invocation_metadata())
    if "do-report" in metadata:
        return encode(json.dumps(RECORDS.get(metadata["do-report"], {"started": False})).encode())
    if "do-release" in metadata:
        gate(metadata["do-release"]).set()
        return b""
    async with Handling(context) as handling:
        handling.report["received"] += 1
        await handling.begin()
        await handling.finish()
        handling.report["sent"] += 1
        return request


async def server_stream(request, context):
    async with Handling(context) as handling:
        handling.report["received"] += 1
        await handling.begin()
        size = handling.number("size")
        for n in range(1 if handling.number("count") is None else handling.number("count")):
            await handling.fail_if_told()
            await handling.send(decode(request) if size is None else patterned(size, n))
        await handling.finish()


async def client_stream(_, context):
    async with Handling(context) as handling:
        await handling.begin()
        await handling.fail_if_told()
        total = crc = 0
        early = False
        while not early and (message := await context.read()) is not grpc.aio.EOF:
            payload = decode(message)
            handling.report["received"] += 1
            total += len(payload)
            crc = zlib.crc32(payload, crc)
            early = handling.report["received"] == handling.number("end-after")
        handling.report["halfClosed"] = not early
        await handling.finish()
        return encode(f"{handling.report['received']} {total} {crc}".encode())


async def bidi(_, context):
    async with Handling(context) as handling:
        await handling.begin()
        if handling.number("fail-after") is None:
            await handling.fail_if_told()
        early = False
        while not early and (message := await context.read()) is not grpc.aio.EOF:
            handling.report["received"] += 1
            await handling.fail_if_told()
            await handling.send(decode(message))
            early = handling.report["received"] == handling.number("end-after")
        handling.report["halfClosed"] = not early
        await handling.finish()


async def listen(config):
    # A call's own `set_compression` is not applied to unary answers.
    server = grpc.aio.server(compression=grpc.Compression.Gzip if GZIP else None)
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
        "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
        "Bidi": grpc.stream_stream_rpc_method_handler(bidi),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    address = config["address"]
    if "tls" in config:
        tls = {name: text.encode() for name, text in config["tls"].items()}
        credentials = grpc.ssl_server_credentials([(tls["key"], tls["cert"])], tls["ca"], require_client_auth=True)
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    await server.start()
    emit({"listening": address if address.startswith("unix:") else f"127.0.0.1:{port}"})
    return server


async def serve(config):
    current = await listen(config)
    stopping = []
    async for _ in lines():
        old, current = current, await listen(config)
        stopping.append(asyncio.create_task(old.stop(30)))


CONFIG = json.loads(sys.argv[1])
GZIP = CONFIG.get("gzip", False)
asyncio.run(client(CONFIG) if CONFIG["role"] == "client" else serve(CONFIG))
