"""A proxy between the page and a server: it keeps the bodies of questions, and may write the answer itself and end it as it likes."""
import http.client
import http.server
import json
import socket
import threading

CHAT = "/v1/chat/completions"


class Relay:
    """On a free port. `bodies`: of the questions so far. `script`: (pieces of the next answer, how it ends) or None, the server's own. "lost" waits for `cut`."""

    def __init__(self, port):
        relay, self.bodies, self.script, self.cut = self, [], None, threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.forward(None)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == CHAT:
                    relay.bodies.append(json.loads(body))
                if self.path == CHAT and relay.script:
                    self.write(*relay.script)
                else:
                    self.forward(body)

            def forward(self, body):
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() != "host"})
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    while data := answer.read1():
                        self.chunk(data)
                    self.chunk(b"")
                except OSError:  # the page has left; so does this
                    self.close_connection = True
                connection.close()

            def chunk(self, data):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def write(self, pieces, end):
                if end == "refused":
                    words = json.dumps({"error": {"message": "too many requests wait"}}).encode()
                    self.send_response(429)
                    self.send_header("Content-Length", str(len(words)))
                    self.end_headers()
                    self.wfile.write(words)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in pieces:
                    delta = piece if isinstance(piece, dict) else {"content": piece}
                    self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
                if end == "done":
                    self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                    self.chunk(b"data: [DONE]\n\n")
                    self.chunk(b"")
                elif end == "error":
                    self.event({"error": {"message": "the engine has no memory left"}})
                    self.chunk(b"")
                elif end == "short":  # a whole answer of HTTP, but not of events
                    self.chunk(b"")
                elif end == "lost":  # when the page has what was sent: what it has not read yet, it would not get
                    relay.cut.wait(60)
                    relay.cut.clear()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif end == "silent":  # until the page leaves
                    self.connection.recv(1)
                    self.close_connection = True

            def event(self, body):
                self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

        class Threads(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # connections that are cut
                pass

        self.http = Threads(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
