"""The files of deploy/: HAProxy with two replicas answers as it should, and the others name what exists."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from cli import BUTLER, ROOT
from test_serve import Server, pytestmark  # noqa: F401  (skips without libevent)

DEPLOY = ROOT / "deploy"
FLAGS = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)|^  (-\w),", subprocess.run([BUTLER, "serve", "--help"], capture_output=True, text=True).stdout, re.M))
FLAGS = {flag for pair in FLAGS for flag in pair if flag} | {"-m", "-c", "-t"}


class Front(Server):
    """HAProxy before two replicas; requests as to a server."""

    def __init__(self):
        self.replicas = [Server(), Server()]
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        names = {f"REPLICA_{i + 1}": f"127.0.0.1:{replica.port}" for i, replica in enumerate(self.replicas)}
        self.process = subprocess.Popen([shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", DEPLOY / "haproxy.cfg"],
                                        env={**os.environ, **names, "BIND": f"127.0.0.1:{self.port}"}, stderr=subprocess.PIPE, text=True)
        end = time.time() + 20
        while not self.is_up():
            assert time.time() < end, "HAProxy does not answer"
            time.sleep(0.05)

    def is_up(self):
        try:
            return self.request("GET", "/health")[0] == 200
        except OSError:
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        for replica in self.replicas:
            replica.process.kill()
            replica.process.wait()
            replica.process.stderr.close()

    def n_jobs(self):
        return [replica.metric("butler:jobs_total") for replica in self.replicas if replica.process.poll() is None]

    def complete(self, group, prompt):
        """Bodies of a group have their first 2,048 bytes in common."""
        return self.post("/v1/completions", {"group": f"{group}" * 2048, "prompt": prompt, "max_tokens": 3})


@pytest.fixture
def front():
    if not (shutil.which("haproxy") or os.path.exists("/usr/sbin/haproxy")):
        pytest.skip("there is no haproxy")
    one = Front()
    yield one
    one.stop()


def test_the_same_beginning_goes_to_the_same_replica(front):
    replicas = []
    for group in range(10):
        before = front.n_jobs()
        for i in range(3):
            front.complete(group, [5 + i] * 8)
        more = [now - then for now, then in zip(front.n_jobs(), before)]
        assert sorted(more) == [0, 3]
        replicas.append(more.index(3))
    assert set(replicas) == {0, 1}


def test_the_prefix_cache_is_hit_through_it(front):
    prompt = [7 + i % 9 for i in range(100)]
    counts = [front.complete(1, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(3)]
    assert counts[0] == 0 and min(counts[1:]) > 90


def test_a_killed_replica_costs_no_request(front):
    front.replicas[0].process.send_signal(signal.SIGKILL)
    for group in range(10):
        front.complete(group, [5] * 8)
    assert front.n_jobs() == [10]


def test_a_drained_replica_ends_its_answers(front):
    """Pieces of a stream come before its end; SIGTERM to the replica cuts nothing off, and others take what comes then."""
    data = json.dumps({"prompt": [5] * 8, "max_tokens": 240, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    before = front.n_jobs()
    assert front.request("POST", "/v1/completions", data)[0] == 200
    busy = front.replicas[0 if front.n_jobs()[0] > before[0] else 1]  # the same body goes there again
    with socket.create_connection(("127.0.0.1", front.port), timeout=60) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        text = c.recv(2048)
        assert b"200 OK" in text and b"[DONE]" not in text
        busy.process.send_signal(signal.SIGTERM)
        while piece := c.recv(65536):
            text += piece
    assert b"data: [DONE]" in text and b'"finish_reason":"length"' in text
    for group in range(10):
        front.complete(group, [5] * 8)
    assert busy.process.wait(timeout=20) == 0


def words_of(text):
    return {word for word in re.findall(r"(?<![\w-])--?[a-z][\w-]*", text)}


def test_the_unit():
    text = (DEPLOY / "butler.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", text, re.M).group(1)
    assert words_of(command) and words_of(command) <= FLAGS
    if shutil.which("systemd-analyze"):
        result = subprocess.run(["systemd-analyze", "verify", "--man=no", DEPLOY / "butler.service"], capture_output=True, text=True)
        said = [line for line in result.stderr.splitlines() if "butler.service" in line and "/usr/local/bin/butler is not executable" not in line]
        assert not said


def test_containers():
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    front_port = services["haproxy"]["ports"][0].split(":")[1]
    environment = services["haproxy"]["environment"]
    assert environment["BIND"].split(":")[1] == front_port
    docker = (DEPLOY / "Dockerfile").read_text()
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", docker, re.M).group(1))
    assert words_of(" ".join(entry)) <= FLAGS
    port = entry[entry.index("--port") + 1]
    assert f"EXPOSE {port}" in docker
    for name in ("REPLICA_1", "REPLICA_2"):
        host, found = environment[name].split(":")
        assert found == port and words_of(" ".join(services[host]["command"])) <= FLAGS
        assert (DEPLOY / services[host]["build"]["context"] / services[host]["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert set(re.findall(r"\$\{(\w+)\}", "".join(re.findall(r"\s\"(\$\{\w+\})\"", (DEPLOY / "haproxy.cfg").read_text())))) == set(environment)

    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert words_of(" ".join(container["args"])) <= FLAGS
    assert container["ports"][0]["containerPort"] == int(port)
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")} == {"/health"}


def test_the_image_has_the_libraries():
    """Every library that the command is linked with comes from a package that the image installs, or from one that those need."""
    if not shutil.which("dpkg"):
        pytest.skip("not Debian")
    docker = (DEPLOY / "Dockerfile").read_text()
    linked = subprocess.run(["ldd", BUTLER], capture_output=True, text=True).stdout
    installed = set(re.findall(r"\blib[\w.+-]+", docker))
    for library in ("libpcre2-8", "libxxhash", "libjansson", "libedit", "libevent_core"):
        if library in linked:
            assert any(package.replace("-", "_").startswith(library.replace("-", "_")) for package in installed), library
