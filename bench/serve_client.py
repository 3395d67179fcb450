"""What the server's benchmarks share: starting a server, its memory, and requests that time every token."""
import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def exit_on_term():
    """SIGTERM ends the program as an error does, so that it ends its server."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A process that answers at a port of its own. command: its words; {port} among them, or in the environment that is added."""

    def __init__(self, command, log, **environment):
        self.port = free_port()
        self.log = open(log, "w")

        def fill(word):
            return str(word).replace("{port}", str(self.port))
        self.process = subprocess.Popen([fill(word) for word in command], stdout=self.log, stderr=self.log,
                                        env={**os.environ, **{name: fill(value) for name, value in environment.items()}})
        end = time.time() + 300
        while not self.answers():
            if self.process.poll() is not None or time.time() > end:
                sys.exit(f"{command[0]} does not serve; see {log}")
            time.sleep(0.2)

    def answers(self):
        try:
            return asyncio.run(fetch(self.port, "GET", "/health"))[0] == 200
        except OSError:
            return False

    def memory(self, peak=False):
        """Resident bytes now, or at most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(rf"Vm{'HWM' if peak else 'RSS'}:\s+(\d+)", status).group(1))

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


async def send(port, method, path, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    data = b"" if body is None else json.dumps(body).encode()
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
                 .encode() + data)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    chunked = False
    while (line := await reader.readline()) not in (b"\r\n", b""):
        chunked |= line.lower().replace(b" ", b"").startswith(b"transfer-encoding:chunked")
    return reader, writer, status, chunked


async def fetch(port, method, path, body=None):
    """(status, bytes) of an answer that comes whole."""
    reader, writer, status, chunked = await send(port, method, path, body)
    data = b""
    while chunked and (n := int(await reader.readline(), 16)):
        data += await reader.readexactly(n)
        await reader.readline()
    data = data if chunked else await reader.read()
    writer.close()
    return status, data


async def generate(port, body, stop_after=None):
    """Times of the tokens of a stream, seconds after it was asked for, and the last object with a usage. stop_after: tokens after which the
    client goes away."""
    begin = time.perf_counter()
    times, usage = [], {}
    reader, writer, status, _ = await send(port, "POST", "/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    if status != 200:
        text = await reader.read()
        writer.close()
        raise RuntimeError(f"status {status}: {text[:300]!r}")
    while line := await reader.readline():  # lengths of chunks and empty lines are skipped
        if not line.startswith(b"data: "):
            continue
        now = time.perf_counter() - begin
        if line.startswith(b"data: [DONE]"):
            break
        piece = json.loads(line[6:])
        if "error" in piece:
            raise RuntimeError(str(piece["error"]))
        usage = piece.get("usage") or usage
        if piece["choices"] and not piece["choices"][0].get("finish_reason"):
            times.append(now)
            if len(times) == stop_after:
                break
    writer.close()
    return times, usage


def make_documents(n, n_characters):
    """Texts of that length, each the sentences of models/long_text.txt in an order of its own."""
    sentences = re.split(r"(?<=[.!?])\s+", (ROOT / "models" / "long_text.txt").read_text(encoding="utf-8"))
    documents = []
    for i in range(n):
        order, text = random.Random(i), ""
        while len(text) < n_characters:
            text += " ".join(order.sample(sentences, len(sentences))) + " "
        documents.append(text[:n_characters])
    return documents


class Replicas:
    """Servers behind HAProxy, as deploy/haproxy.cfg has them; used as one."""

    def __init__(self, command, n, log):
        self.servers = [Server(command, f"{log}.{i + 1}") for i in range(n)]
        names = {f"REPLICA_{i + 1}": f"127.0.0.1:{server.port}" for i, server in enumerate(self.servers)}
        try:
            self.front = Server(["haproxy", "-db", "-f", ROOT / "deploy" / "haproxy.cfg"], log, BIND="127.0.0.1:{port}", **names)
        except (OSError, SystemExit):
            for server in self.servers:
                server.stop()
            raise
        self.port = self.front.port

    def memory(self, peak=False):
        return sum(server.memory(peak) for server in self.servers)

    def stop(self):
        for server in [self.front, *self.servers]:
            server.stop()
