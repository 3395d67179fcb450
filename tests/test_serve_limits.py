"""butler serve keeps to the limits of the system: files, memory, places and queue. Nothing of it is told more than once in a while."""
import http.client
import json
import os
import re
import resource
import socket
import subprocess
import threading
import time

import pytest

from cli import GQA, PROMPT, butler
from test_serve import BUTLER, LINK, Server, completion, pytestmark  # noqa: F401  (skips where butler is built without libevent)

LONG = {"prompt": [5] * 8, "max_tokens": 240, "ignore_eos": True, "n": 16}


def limited(which, soft, hard=None):
    """A function for a child before it runs."""
    return lambda: resource.setrlimit(which, (soft, hard or soft))


def start(monkeypatch, limit, *flags):
    """A server below a limit."""
    popen = subprocess.Popen
    with monkeypatch.context() as m:
        m.setattr(subprocess, "Popen", lambda *args, **kwargs: popen(*args, preexec_fn=limit, **kwargs))
        return Server(*flags)


def seconds_used(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def health(port, timeout=5):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    begin = time.time()
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status, time.time() - begin
    finally:
        connection.close()


# ------------------------------------------------------------------------------------------------------------- files

def test_the_limit_on_files_is_raised(monkeypatch):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 512:
        pytest.skip("the hard limit on open files is below 512")
    s = start(monkeypatch, limited(resource.RLIMIT_NOFILE, 128, 512), "--connections", 300)
    assert resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE) == (512, 512)
    held = [socket.create_connection(("127.0.0.1", s.port), timeout=20) for _ in range(250)]
    assert health(s.port)[0] == 200
    for c in held:
        c.close()
    assert s.stop() == 0


def test_connections_leave_files_for_others(monkeypatch):
    """More idle connections than there are files: the rest is refused, /health answers, and nothing is told again and again."""
    s = start(monkeypatch, limited(resource.RLIMIT_NOFILE, 256), "--connections", 1024)
    held, before = [], seconds_used(s.process)
    for _ in range(300):
        held.append(socket.create_connection(("127.0.0.1", s.port), timeout=20))
    time.sleep(1)
    assert seconds_used(s.process) - before < 0.5
    assert health(s.port)[0] == 503
    for c in held[-30:] + held[:30]:
        c.close()
    time.sleep(0.2)
    status, seconds = health(s.port)
    assert status == 200 and seconds < 1
    for c in held:
        c.close()
    s.process.terminate()
    told = s.process.stderr.read().splitlines() + [s.ready]
    assert s.process.wait(timeout=20) == 0 and len(told) <= 3
    s.process.stderr.close()


def test_the_connections_are_told(monkeypatch):
    result = subprocess.Popen([BUTLER, "serve", "-m", GQA, "--port", "0"], stderr=subprocess.PIPE, text=True,
                              preexec_fn=limited(resource.RLIMIT_NOFILE, 200))
    first = result.stderr.readline()
    assert "at most 136 connections: the limit on open files is 200" in first and "listening" in result.stderr.readline()
    result.terminate()
    assert result.wait(timeout=20) == 0
    result.stderr.close()
    error = butler("serve", "-m", GQA, "--port", 0, expect=1, preexec_fn=limited(resource.RLIMIT_NOFILE, 60)).stderr
    assert "the limit on open files is 60" in error and "more than 64" in error


def test_the_listener_rests_when_files_run_out():
    """Files that others take in spite of the reserve: a connection waits, at no cost, and is accepted when there are files again."""
    s = Server()
    connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20)
    connection.request("GET", "/health")
    assert connection.getresponse().read()
    files = len(os.listdir(f"/proc/{s.process.pid}/fd"))
    limits = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (files, limits[1]))
    before = seconds_used(s.process)
    with socket.create_connection(("127.0.0.1", s.port), timeout=20) as waits:
        waits.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(1.5)
        assert seconds_used(s.process) - before < 0.3
        connection.request("GET", "/health")  # who is connected already is answered
        assert connection.getresponse().read()
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, limits)
        assert waits.recv(100).startswith(b"HTTP/1.1 200 ")
    connection.close()
    s.process.terminate()
    told = s.process.stderr.read().splitlines()
    assert s.process.wait(timeout=20) == 0
    s.process.stderr.close()
    assert len(told) == 2 and "cannot be accepted now: Too many open files" in told[0] and told[1].startswith(told[0] + " (")


# ------------------------------------------------------------------------------------------------------------ memory

def test_memory_that_cannot_be_had():
    error = butler("serve", "-m", GQA, "--port", 0, "--kv-ram", "1000T", expect=2).stderr
    assert "--kv-ram: 1100 TB cannot be had" in error and "memory" in error.partition("had: ")[2]


@pytest.mark.skipif("libasan" in LINK or "libtsan" in LINK, reason="sanitizers reserve address space of their own")
def test_address_space_that_cannot_be_had():
    """What ulimit -v leaves is too little for --kv-ram: told at the start, not to each client."""
    error = butler("serve", "-m", GQA, "--port", 0, "--kv-ram", "8G", expect=1, preexec_fn=limited(resource.RLIMIT_AS, 4 << 30)).stderr
    assert "8589" in error.replace(",", "") or "8.0 G" in error, error
    s = Server("--kv-ram", "64M")
    assert s.stop() == 0


# ------------------------------------------------------------------------------------------------------------ places

def burst(server, n, body):
    """Statuses of n requests that come at once."""
    statuses, ready = [], threading.Barrier(n)

    def one():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.connect()
        ready.wait()
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sorted(statuses)


def test_a_slow_reader_gets_all(tmp_path):
    """Longer than --timeout after the answer was written, but it reads; then one that does not."""
    s = Server("--timeout", 1)
    data = json.dumps({"content": "the " * 3900000}).encode()
    for reads in (True, False):
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            head, _, text = c.recv(4096).partition(b"\r\n\r\n")
            length, end = int(re.search(rb"Content-Length: (\d+)", head)[1]), time.time() + 3
            while reads and time.time() < end:
                text += c.recv(20000)
                time.sleep(0.05)
            if not reads:
                time.sleep(3.5)
            c.settimeout(60)
            try:
                while piece := c.recv(1 << 20):
                    text += piece
            except ConnectionError:
                pass
            assert b"Connection: close" in head and (len(text) == length) == reads
    assert s.stop() == 0


@pytest.mark.parametrize("parallel, queue, refused", [(2, 3, 3), (2, 0, 6), (1, 1, 6), (8, 0, 0)])
def test_a_burst_fills_all_places_first(parallel, queue, refused):
    s = Server("--parallel", parallel, "--queue", queue)
    for _ in range(3):
        assert burst(s, 8, LONG) == [200] * (8 - refused) + [429] * refused
        s.wait_idle()
    for _ in range(20):  # one after the other always finds a place
        s.post("/v1/completions", completion(PROMPT, 1))
    assert s.stop() == 0


def test_places_without_memory_are_none():
    """Memory for one request at a time: others wait, as many as --queue allows, whatever --parallel is."""
    body, alone = {**LONG, "n": 64}, Server()
    thread = threading.Thread(target=alone.post, args=("/v1/completions", body))
    thread.start()
    while not (bytes_of_one := alone.metric("butler:kv_reserved_bytes")):
        pass
    thread.join()
    assert alone.stop() == 0
    s = Server("--kv-ram", int(bytes_of_one * 2), "--parallel", 8, "--queue", 2)  # of which a quarter is for beginnings of prompts

    def full():
        return len(s.get("/slots")) == 1 and s.metric("llamacpp:requests_deferred") == 2

    for _ in range(5):  # on a busy machine a request may end before the burst
        threads = [threading.Thread(target=s.post, args=("/v1/completions", body)) for _ in range(3)]
        for t in threads:
            t.start()
        while not full() and any(t.is_alive() for t in threads):
            pass
        statuses, still = burst(s, 5, body), full()
        for t in threads:
            t.join()
        if still:
            break
    assert still and statuses == [429] * 5
    assert s.stop() == 0
