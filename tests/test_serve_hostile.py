"""butler serve before clients that are slow, broken or hostile: the answers that RFC 9112 asks for, and memory as before."""
import json
import os
import re
import select
import signal
import socket
import threading
import time

import pytest

from cli import GQA, PROMPT, butler
from test_serve import LINK, Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)

N_READERS, READ_SECONDS = (500, 60) if os.environ.get("BUTLER_SLOW_READERS") else (100, 10)
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
JSON = b'{"content":"a"}'
MAX_BODY = 1 << 20


@pytest.fixture(scope="module")
def server():
    s = Server("--timeout", 3, "--max-body", MAX_BODY)
    yield s
    assert s.stop() == 0


def memory(server):
    """KiB of the server's process; 0 with AddressSanitizer, which keeps what is freed."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return 0 if "libasan" in LINK else int(re.search(r"^VmRSS:\s+(\d+) kB$", status.read(), re.M).group(1))


def talk(server, data, pieces=1):
    """All that comes back until the server closes the connection."""
    step, out = -(-len(data) // pieces), b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        for i in range(0, len(data), step):
            s.sendall(data[i:i + step])
        while piece := s.recv(65536):
            out += piece
    return out


def statuses(answer):
    """Of the answers in these bytes, of which each must be whole."""
    found = []
    while answer:
        head, end, answer = answer.partition(b"\r\n\r\n")
        status = int(re.match(rb"HTTP/1\.1 (\d{3}) ", head).group(1))
        found.append(status)
        assert end
        if status >= 200 and status != 204:
            n = int(re.search(rb"\r\nContent-Length: (\d+)", head).group(1))
            assert len(answer) >= n
            answer = answer[n:]
    return found


def request(*headers, body=JSON, path=b"/tokenize", version=b"1.1"):
    return b"POST " + path + b" HTTP/" + version + b"\r\nHost: x\r\n" + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: %d" % len(JSON)
BODY = b"%x\r\n" % len(JSON) + JSON + b"\r\n0\r\n\r\n"

# What one program may read otherwise than another behind or in front of it. Refused: one answer, and the connection ends, for where
# the next request begins is not known. The section of RFC 9112 that says so, or that lets a server choose.
REFUSED = {
    "length and chunks (6.3)": (400, request(CHUNKED, LENGTH, body=BODY)),
    "chunks and length (6.3)": (400, request(LENGTH, CHUNKED, body=BODY)),
    "two lengths that differ (6.3)": (400, request(LENGTH, b"Content-Length: 0")),
    "two equal lengths (6.3)": (400, request(LENGTH, LENGTH)),
    "a list of lengths (6.3)": (400, request(b"Content-Length: 15, 15")),
    "a negative length (6.3)": (400, request(b"Content-Length: -1")),
    "a length with plus (6.3)": (400, request(b"Content-Length: +15")),
    "a hexadecimal length (6.3)": (400, request(b"Content-Length: 0xf")),
    "an empty length (6.3)": (400, request(b"Content-Length:")),
    "a length with a blank in it (6.3)": (400, request(b"Content-Length: 1 5")),
    "a length of a fraction (6.3)": (400, request(b"Content-Length: 15.0")),
    "a length beyond 64 bits (6.3)": (400, request(b"Content-Length: 18446744073709551631")),
    "a length of 2^63 (6.3)": (400, request(b"Content-Length: 9223372036854775808")),
    "a large length": (413, request(b"Content-Length: %d" % (MAX_BODY + 1))),
    "chunked twice (6.1)": (501, request(b"Transfer-Encoding: chunked, chunked", body=BODY)),
    "two Transfer-Encoding (6.1)": (400, request(CHUNKED, CHUNKED, body=BODY)),
    "chunked is not last (6.1)": (501, request(b"Transfer-Encoding: chunked, identity", body=BODY)),
    "an unknown encoding (6.1)": (501, request(b"Transfer-Encoding: xchunked", body=BODY)),
    "an encoding of nothing (6.1)": (501, request(b"Transfer-Encoding:", body=BODY)),
    "an encoding with a control byte (5.5)": (400, request(b"Transfer-Encoding: \x0bchunked", body=BODY)),
    "chunks in HTTP/1.0 (6.1)": (400, request(CHUNKED, version=b"1.0", body=BODY)),
    "a blank before the colon (5.1)": (400, request(b"Content-Length : 15")),
    "a blank before the colon of an encoding (5.1)": (400, request(b"Transfer-Encoding : chunked", body=BODY)),
    "a folded header (5.2)": (400, request(LENGTH, b"A: b", b" c")),
    "a header that begins with a blank (2.2)": (400, b"POST /tokenize HTTP/1.1\r\n Content-Length: 15\r\nHost: x\r\n\r\n" + JSON),
    "a header without colon": (400, request(LENGTH, b"Nonsense")),
    "a header without name": (400, request(LENGTH, b": x")),
    "a lone CR in a header (2.2)": (400, request(LENGTH, b"A: b\rTransfer-Encoding: chunked")),
    "a lone LF after a header (2.2)": (400, b"POST /tokenize HTTP/1.1\r\nHost: x\nContent-Length: 15\r\n\r\n" + JSON),
    "a lone LF before the body (2.2)": (400, b"GET /health HTTP/1.1\r\nHost: x\r\n\n\r\n\r\n"),
    "a zero byte in a header (5.5)": (400, request(LENGTH, b"A: \x00")),
    "a lone CR in the first line (2.2)": (400, b"GET /health\r HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a tab in the first line (3)": (400, b"GET\t/health\tHTTP/1.1\r\nHost: x\r\n\r\n"),
    "two blanks in the first line (3)": (400, b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    "no version (3)": (400, b"GET /health\r\nHost: x\r\n\r\n"),
    "another version (2.3)": (505, b"GET /health HTTP/1.2\r\nHost: x\r\n\r\n"),
    "a version of another protocol (2.3)": (400, b"GET /health ICAP/1.0\r\nHost: x\r\n\r\n"),
    "HTTP/2's preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a TLS handshake": (400, b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n"),
    "a target without slash (3.2)": (400, b"GET health HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target of CONNECT (3.2.3)": (400, b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "an asterisk other than for OPTIONS (3.2.4)": (400, b"GET * HTTP/1.1\r\nHost: x\r\n\r\n"),
    "no Host (3.2)": (400, b"GET /health HTTP/1.1\r\n\r\n"),
    "two Hosts (3.2)": (400, b"GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"),
    "a chunk's size that is no number (7.1)": (400, request(CHUNKED, body=b"x\r\n")),
    "a negative chunk (7.1)": (400, request(CHUNKED, body=b"-1\r\n")),
    "a chunk with plus (7.1)": (400, request(CHUNKED, body=b"+f\r\n" + JSON + b"\r\n0\r\n\r\n")),
    "a chunk with 0x (7.1)": (400, request(CHUNKED, body=b"0xf\r\n" + JSON + b"\r\n0\r\n\r\n")),
    "a chunk without size (7.1)": (400, request(CHUNKED, body=b"\r\n" + BODY)),
    "a chunk of 2^64 + 15 (7.1)": (400, request(CHUNKED, body=b"1000000000000000f\r\n" + JSON + b"\r\n0\r\n\r\n")),
    "a large chunk": (413, request(CHUNKED, body=b"%x\r\n" % (MAX_BODY + 1))),
    "a chunk that is longer than its size (7.1)": (400, request(CHUNKED, body=b"2\r\n{}x\r\n0\r\n\r\n")),
    "a chunk that ends with a lone LF (7.1)": (400, request(CHUNKED, body=b"f\r\n" + JSON + b"\n0\r\n\r\n")),
    "a chunk's size that ends with a lone LF (7.1)": (400, request(CHUNKED, body=b"f\n" + JSON + b"\r\n0\r\n\r\n")),
    "a lone LF in a chunk's extension (7.1.1)": (400, request(CHUNKED, body=b"f;a\nb\r\n" + JSON + b"\r\n0\r\n\r\n")),
    "a zero byte after a chunk's size (7.1)": (400, request(CHUNKED, body=b"f\x00\r\n" + JSON + b"\r\n0\r\n\r\n")),
    "an endless extension (7.1.1)": (400, request(CHUNKED, body=b"f;" + b"a" * 2000)),
    "a trailer without colon (7.1.2)": (400, request(CHUNKED, body=BODY[:-2] + b"GET / HTTP/1.1\r\n\r\n")),
    "a trailer with a lone LF (7.1.2)": (400, request(CHUNKED, body=BODY[:-2] + b"A: b\nC: d\r\n\r\n")),
    "too many trailers": (431, request(CHUNKED, body=BODY[:-2] + b"A: b\r\n" * 100 + b"\r\n")),
    "a large head": (431, b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000 + b"\r\n\r\n"),
    "a head without end": (431, b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20000),
    "another expectation (RFC 9110, 10.1.1)": (417, request(LENGTH, b"Expect: 200-ok")),
}

# What a server has to understand: the answers to it, before the one to a last request.
ACCEPTED = {
    "a length": ([200], request(LENGTH)),
    "a length with zeros": ([200], request(b"Content-Length: 00000000015")),
    "blanks around a value (5.1)": ([200], request(b"Content-Length: \t 15 \t")),
    "names in any case (5.1)": ([200], request(b"cOnTeNt-LeNgTh: 15")),
    "chunks": ([200], request(CHUNKED, body=BODY)),
    "Chunked in any case (6.1)": ([200], request(b"Transfer-Encoding: CHUNKED", body=BODY)),
    "chunk extensions (7.1.1)": ([200], request(CHUNKED, body=b'F;a;b=c;d="e" ;f\r\n' + JSON + b"\r\n000;x\r\n\r\n")),
    "a blank before an extension (7.1.1)": ([200], request(CHUNKED, body=b"f \t;a=b\r\n" + JSON + b"\r\n0\r\n\r\n")),
    "a chunk for each byte (7.1)": ([200], request(CHUNKED, body=b"".join(b"1\r\n%c\r\n" % c for c in JSON) + b"0\r\n\r\n")),
    "trailers, which change nothing (7.1.2)": ([200], request(CHUNKED, body=BODY[:-2] + b"Content-Length: 100\r\nA: b\r\n\r\n")),
    "empty lines before a request (2.2)": ([200], b"\r\n\r\n" + GET),
    "an absolute target (3.2.2)": ([200, 200], GET.replace(b"/health", b"http://other.example:1/health?a") + GET.replace(b"/health", b"HTTPS://x/health")),
    "an absolute target without path (3.2.2)": ([200], GET.replace(b"/health", b"http://x")),
    "an asterisk for OPTIONS (3.2.4)": ([204], b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"),
    "many requests at once (9.3.2)": ([200] * 30, GET * 10 + request(LENGTH) * 10 + request(CHUNKED, body=BODY) * 10),
    "a body of GET": ([200], b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /"),
    "an expectation (RFC 9110, 10.1.1)": ([100, 200], request(LENGTH, b"Expect: 100-continue")),
    "an expectation without body (RFC 9110, 10.1.1)": ([200], GET.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")),
    "a method that a path does not have": ([405], b"DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n"),
    "bytes beyond ASCII in a value (5.5)": ([200], GET.replace(b"\r\n\r\n", b"\r\nA: \xff\xc3\r\n\r\n")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(server, name):
    """Whatever follows a request that is refused is not answered, and the answer arrives although not all was read."""
    status, data = REFUSED[name]
    for pieces in (1, 7):
        answer = talk(server, data + LAST, pieces)
        assert statuses(answer) == [status] and b"Connection: close" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == status


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(server, name):
    expected, data = ACCEPTED[name]
    for pieces in (1, 11, len(data)):
        assert statuses(talk(server, data + LAST, pieces)) == [*expected, 200]


def test_http_1_0(server):
    """A connection of HTTP/1.0 ends after an answer, and interim answers are not sent on it (RFC 9110, 10.1.1)."""
    assert statuses(talk(server, b"GET /health HTTP/1.0\r\n\r\n" + GET)) == [200]
    assert statuses(talk(server, request(LENGTH, b"Expect: 100-continue", version=b"1.0"))) == [200]
    kept = b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert statuses(talk(server, kept + LAST)) == [200, 200]


def test_methods_that_are_not_allowed_are_named(server):
    for path, method, allowed in [("/health", "POST", {"GET", "HEAD", "OPTIONS"}), ("/tokenize", "GET", {"POST", "OPTIONS"})]:
        status, headers, _ = server.request(method, path)
        assert status == 405 and set(headers["Allow"].split(", ")) == allowed


def test_answer_to_a_body_that_is_too_large_arrives(server):
    """The client still sends while the answer comes: it is not lost in a reset."""
    for head in (b"Content-Length: %d" % (64 * MAX_BODY), CHUNKED):
        body = b"a" * (8 * MAX_BODY) if head != CHUNKED else b"%x\r\n" % (8 * MAX_BODY) + b"a" * (8 * MAX_BODY)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(request(head, body=body))
            s.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := s.recv(65536):
                answer += piece
        assert statuses(answer) == [413]


def test_truncated_requests(server):
    """A client that goes away in the middle of a request is no request, and leaves nothing behind."""
    before, jobs = server.metric("butler:connections"), server.metric("butler:jobs_total")
    whole = request(b"Content-Length: 80", path=b"/v1/completions", body=b'{"prompt": "a", "max_tokens": 1')
    for cut in range(1, len(whole), 3):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(whole[:cut])
    for cut in range(len(request(CHUNKED, body=b"")) + 1, len(request(CHUNKED, body=BODY)) - 1):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(request(CHUNKED, body=BODY)[:cut])
            s.shutdown(socket.SHUT_WR)
            assert s.recv(100) == b""
    end = time.time() + 10
    while server.metric("butler:connections") > before:
        assert time.time() < end
        time.sleep(0.02)
    assert server.metric("butler:jobs_total") == jobs


DEEP = 100000
BODIES = {
    "nothing": b"", "a blank": b" ", "no object": b"5", "half of one": b'{"prompt": ', "two": b"{}{}", "a comment": b"{} // x",
    "a trailing comma": b'{"prompt": "a",}', "single quotes": b"{'prompt': 'a'}", "NaN": b'{"prompt": "a", "temperature": NaN}',
    "a number that is none": b'{"prompt": "a", "temperature": 01}',
    "a real beyond double": b'{"prompt": "a", "temperature": 1e999}', "a control byte": b'{"prompt": "a\x01"}', "a zero byte": b'{"prompt": "a\x00"}',
    "a byte that is no UTF-8": b'{"prompt": "\xff"}', "a cut character": b'{"prompt": "\xe2\x82"}', "an overlong character": b'{"prompt": "\xc0\xaf"}',
    "an encoded surrogate": b'{"prompt": "\xed\xa0\x80"}', "a character beyond Unicode": b'{"prompt": "\xf4\x90\x80\x80"}', "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "a"}', "lists in lists": b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "lists without end": b"[" * DEEP, "objects in objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP, "objects without end": b'{"a":' * DEEP,
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion", "/tokenize", "/detokenize", "/apply-template"])
@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_no_request(server, path, name):
    error = server.post(path, BODIES[name], expect=400)["error"]
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 600


@pytest.mark.parametrize("text, read", [
    ("a\\u0000b", "a\ufffdb"), ("\\ud800", "\ufffd"), ("\\uDC00x", "\ufffdx"), ("\\ud83d\\u0041", "\ufffdA"), ("\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
    ("\\ud83d\\ude00", "\U0001f600"), ("\\\\u0000", "\\u0000"), ("\\\\\\u0000", "\\\ufffd"), ("\\ud83d", "\ufffd"), ("\\ud83d\\n", "\ufffd\n"),
    ("99999999999999999999", "99999999999999999999"), ("\\ud83d\\u000", None), ("\\ud83", None), ("\\u00", None)])
def test_escapes_of_no_character(server, text, read):
    """What JSON can write and no text can have: U+FFFD, as in other programs, or what is no JSON at all."""
    body = b'{"content": "' + text.encode() + b'"}'
    if read is None:
        assert "no JSON" in server.post("/tokenize", body, expect=400)["error"]["message"]
        return
    assert server.post("/tokenize", body)["tokens"] == server.post("/tokenize", {"content": read})["tokens"]
    chat = b'{"messages": [{"role": "user", "content": "' + text.encode() + b'"}]}'
    assert server.post("/apply-template", chat) == server.post("/apply-template", {"messages": [{"role": "user", "content": read}]})


@pytest.mark.parametrize("number", ["0.69999999999999995559", "-0.33333333333333333333333", "1.00000000000000000000e-1", "123456789.12345678901234567890E+2"])
def test_numbers_with_many_digits(server, number):
    """Fractions as C#'s decimal and Java's BigDecimal write them."""
    body = b'{"prompt": "a", "max_tokens": 1, "logit_bias": {"5": ' + number.encode() + b"}}"
    assert server.post("/v1/completions", body)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("blocks", [1000, 5000])
def test_many_pieces_take_time_in_proportion(server, blocks):
    """Thinking blocks, and results of tools, each of which joins what is before it."""
    thoughts = [{"type": "thinking", "thinking": "x" * 100, "signature": ""}] * blocks
    begin = time.time()
    message = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": thoughts}, {"role": "user", "content": "b"}]}
    assert server.request("POST", "/v1/messages/count_tokens", message)[0] in (200, 400)
    chat = {"messages": [{"role": "user", "content": "a"}, *[{"role": "tool", "content": "x" * 100}] * blocks]}
    server.request("POST", "/apply-template", chat)
    assert time.time() - begin < 5, "a copy of all that is before takes minutes"


@pytest.mark.parametrize("seed, right", [(2 ** 63 - 1, True), (2 ** 63, False), (-2 ** 63, False), (-2 ** 63 - 1, False), (2 ** 64, False), (10 ** 40, False), (2 ** 53 + 1, True),
                                         (-1, True), (5.0, True), (5.5, False), (1e300, False), ("5", False), (True, False)])
def test_seeds(server, seed, right):
    """Of 64 bits, none of which is lost; others are refused by the field's name."""
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": seed}
    answer = server.post("/v1/completions", body, expect=200 if right else 400)
    if not right:
        assert answer["error"]["param"] == "seed" and "9223372036854775807" in answer["error"]["message"]
    elif isinstance(seed, int) and seed > 2 ** 40:
        assert answer["choices"][0]["text"] != server.post("/v1/completions", {**body, "seed": seed - 1})["choices"][0]["text"]


def test_wrong_keys_take_no_memory():
    """Who has no key is refused before the body comes in."""
    s = Server("--api-key", "k", "--max-body", 64 << 20)
    answer = talk(s, request(b"Content-Length: %d" % (60 << 20), b"Authorization: Bearer x", body=b"a" * 1000))
    assert statuses(answer) == [401] and b"WWW-Authenticate: Bearer" in answer
    assert statuses(talk(s, request(b"Content-Length: 9", b"Expect: 100-continue", body=b""))) == [401]
    assert b"\r\n\r\n" == talk(s, b"HEAD /slots HTTP/1.1\r\nHost: x\r\n\r\n")[-4:]
    assert s.stop() == 0


def test_memory_stays(server):
    """What is refused leaves nothing behind: rounds of all of it take no more memory than the first one did."""
    held = []
    for _ in range(6):
        for _, data in REFUSED.values():
            talk(server, data + LAST)
        for body in BODIES.values():
            server.post("/v1/completions", body, expect=400)
        held.append(memory(server))
    assert held[-1] - held[1] < 1024, held


# ---------------------------------------------------------------------------------------------------- slow clients

def slowest_answer(server, until):
    """The longest time in seconds that /health took while until() was false."""
    slowest = 0
    while not until():
        begin = time.time()
        assert server.request("GET", "/health")[0] == 200
        slowest = max(slowest, time.time() - begin)
        time.sleep(0.05)
    return slowest


def test_slow_senders(server):
    """Connections that send a byte now and then hold nobody up, and end when their time is over: with 408 where a request had begun."""
    before = memory(server)
    body = request(b"Content-Length: 100000", body=b"")
    clients = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(200)]
    begin, i, got = time.time(), 0, {}
    while len(got) < len(clients):
        assert time.time() - begin < 15
        for k, c in enumerate(clients):
            if c not in got and select.select([c], [], [], 0)[0]:
                try:
                    got[c] = c.recv(1000)
                except OSError:
                    got[c] = b""
            elif c not in got and k % 4:  # every fourth sends nothing at all
                try:
                    c.sendall([b"", b"GET / HTTP/1.1\r\nA: bbbbbbbbbbbbbbbbb"[i:i + 1], (body + b"x" * 50)[i:i + 1] if i else body, b"\r\n"[i % 2:][:1]][k % 4])
                except OSError:
                    got[c] = b""
        i += 1
        assert server.request("GET", "/health")[0] == 200
        time.sleep(0.1)
    assert all(b"HTTP/1.1 408 " in got[c] for k, c in enumerate(clients) if k % 4 in (1, 2))
    assert all(got[c] == b"" for k, c in enumerate(clients) if k % 4 == 0)
    for c in clients:
        c.close()
    assert memory(server) - before < 4096


class SlowReaders:
    """Clients of streams that read a byte each second."""

    def __init__(self, server, n):
        body = json.dumps({"prompt": [5] * 8, "max_tokens": 240, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
        self.sockets, self.n_read, self.stopped = [], 0, False
        for _ in range(n):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", server.port))
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.sockets.append(s)

    def read(self, seconds):
        end = time.time() + seconds
        while time.time() < end:
            begin = time.time()
            for s in self.sockets:
                self.n_read += len(s.recv(1)) if select.select([s], [], [], 0)[0] else 0
            time.sleep(max(0, begin + 1 - time.time()))
        self.stopped = True

    def close(self):
        for s in self.sockets:
            s.close()


def test_slow_readers():
    """They hold nobody up, and what they do not read is bounded; when they are gone their memory is free for the next."""
    s = Server("--queue", 2 * N_READERS, "--connections", 2 * N_READERS)
    before, after, slowest = memory(s), [], 0
    for _ in range(2):
        readers = SlowReaders(s, N_READERS)
        thread = threading.Thread(target=readers.read, args=(READ_SECONDS / 2,))
        thread.start()
        slowest = max(slowest, slowest_answer(s, lambda: readers.stopped))
        held = memory(s) - before
        thread.join()
        assert readers.n_read > N_READERS and s.metric("butler:connections") > N_READERS
        readers.close()
        s.wait_idle()
        after.append(memory(s) - before)
    print(f"{N_READERS} readers: slowest /health {1e3 * slowest:.0f} ms, memory held {held} KiB, after {after} KiB")
    assert s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})["usage"]["completion_tokens"] == 1
    assert slowest < 2 and held < N_READERS * 4096 and after[1] < 1.2 * after[0] + 8192
    assert s.stop() == 0


# ---------------------------------------------------------------------------------------------- beginning and end

def test_signals():
    """After the first no connection is accepted, and an answer goes on; the second ends it too."""
    s = Server("-c", 100000)
    with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
        body = b'{"prompt": "a", "max_tokens": 90000, "ignore_eos": true, "stream": true}'
        c.sendall(request(b"Content-Length: %d" % len(body), body=body, path=b"/v1/completions"))
        assert c.recv(1000).startswith(b"HTTP/1.1 200 OK")
        s.process.send_signal(signal.SIGTERM)
        end = time.time() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", s.port), timeout=20).close()
            except ConnectionRefusedError:
                break
            except ConnectionResetError:  # the socket was closed while this connection waited for it
                pass
            assert time.time() < end
        assert s.process.poll() is None and c.recv(1000)
        assert s.stop() == 0 and time.time() < end


def test_addresses_that_cannot_be_listened_at(tmp_path):
    """Also of a socket file that another server listens at, which must stay."""
    path = str(tmp_path / "b.sock")
    s = Server("--host", path)
    for host, says in ((path, "in use"), ("a" * 200 + ".sock", "at most"), (str(tmp_path / "no" / "b.sock"), "No such file"), ("256.0.0.1", "256.0.0.1")):
        error = butler("serve", "-m", GQA, "--host", host, "--port", 0, expect=1).stderr
        assert says in error and host[:100] in error
    with socket.socket(socket.AF_UNIX) as c:
        c.connect(path)
        c.sendall(LAST)
        assert c.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert s.stop() == 0 and not os.path.exists(path)


def test_access_log_has_a_line_for_every_answer(tmp_path):
    """Refusals too; nothing that a client sends begins a line of its own."""
    log = tmp_path / "log"
    s = Server("--access-log", log)
    talk(s, GET + REFUSED["a negative length (6.3)"][1])
    talk(s, REFUSED["a lone CR in the first line (2.2)"][1])
    talk(s, b"HEAD /health?key=secret HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert s.stop() == 0
    lines = [re.fullmatch(r"\S+Z 127\.0\.0\.1 (\S+ \S+ \d+) (\d+) bytes [\d.]+ ms key -", line).groups() for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["GET /health 200", "POST /tokenize 400", "- - 400", "HEAD /health 200"] and lines[3][1] == "0"
