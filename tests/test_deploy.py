"""The files of deploy/: HAProxy with two replicas answers as it should, and the others name what exists."""
import contextlib
import csv
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

    def __init__(self, folder):
        self.replicas = [Server(), Server()]
        self.control = str(folder / "control")
        (folder / "control.cfg").write_text(f"global\n    stats socket {self.control}\n")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        names = {f"REPLICA_{i + 1}": f"127.0.0.1:{replica.port}" for i, replica in enumerate(self.replicas)}
        self.process = subprocess.Popen([shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", folder / "control.cfg", "-f", DEPLOY / "haproxy.cfg"],
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
        for i, replica in enumerate(self.replicas):
            self.kill(i)
            replica.process.stderr.close()

    def kill(self, i):
        self.replicas[i].process.kill()
        self.replicas[i].process.wait()  # until then it may still take a request

    def n_jobs(self):
        return [replica.metric("butler:jobs_total") for replica in self.replicas if replica.process.poll() is None]

    def n_requests(self):
        """That HAProxy counts as running at each replica, and at both. For a moment, one whose answer has come is among them."""
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.control)
            s.sendall(b"show stat\n")
            rows = list(csv.DictReader(s.makefile()))
        return [int(row["scur"]) for row in rows if row["svname"] in ("replica1", "replica2", "BACKEND")]

    def wait_for(self, n_requests):
        end = time.time() + 20
        while self.n_requests()[-1] != n_requests:
            assert time.time() < end, f"HAProxy does not get to {n_requests} requests"
            time.sleep(0.001)

    def complete(self, group, prompt):
        """Bodies of a group have their first 2,048 bytes in common."""
        return self.post("/v1/completions", {"group": f"{group}" * 2048, "prompt": prompt, "max_tokens": 3})


@pytest.fixture
def front(tmp_path):
    if not (shutil.which("haproxy") or os.path.exists("/usr/sbin/haproxy")):
        pytest.skip("there is no haproxy")
    one = Front(tmp_path)
    yield one
    one.stop()


def test_the_same_beginning_goes_to_the_same_replica(front):
    replicas = []
    for group in range(10):
        before = front.n_jobs()
        for i in range(3):
            front.wait_for(0)
            front.complete(group, [5 + i] * 8)
        more = [now - then for now, then in zip(front.n_jobs(), before)]
        assert sorted(more) == [0, 3]
        replicas.append(more.index(3))
    assert set(replicas) == {0, 1}


def test_the_prefix_cache_is_hit_through_it(front):
    prompt = [7 + i % 9 for i in range(100)]
    counts = []
    for _ in range(3):
        front.wait_for(0)
        counts.append(front.complete(1, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts[0] == 0 and min(counts[1:]) > 90


def test_a_killed_replica_costs_no_request(front):
    front.kill(0)
    for group in range(10):
        front.complete(group, [5] * 8)
    assert front.n_jobs() == [10]


@pytest.mark.parametrize("busy", [0, 1])
def test_a_replica_killed_beside_a_busy_one_costs_no_request(front, busy):
    """The busy one has its share, so the dead one is where a request belongs."""
    with contextlib.ExitStack() as connections:
        for i in range(40):  # bodies that never end: their hash tells where they go
            c = connections.enter_context(socket.create_connection(("127.0.0.1", front.port), timeout=60))
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"%d" % (10 + i) * 25000)
            front.wait_for(1)
            if front.n_requests()[busy] == 1:
                break
            c.close()
            front.wait_for(0)
        front.kill(1 - busy)
        for group in range(10):
            front.complete(group, [5] * 8)
        assert front.n_requests()[busy] >= 1
    assert front.n_jobs() == [10]


def test_a_drained_replica_ends_its_answers(front):
    """Pieces of a stream come before its end; SIGTERM to the replica cuts nothing off, and others take what comes then."""
    data = json.dumps({"prompt": [5] * 8, "max_tokens": 240, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    before = front.n_jobs()
    assert front.request("POST", "/v1/completions", data)[0] == 200
    front.wait_for(0)
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
    installed = set(re.findall(r"\blib[\w.+-]+", (DEPLOY / "Dockerfile").read_text()))
    needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", BUTLER], capture_output=True, text=True, check=True).stdout)
    linked = dict(re.findall(r"(\S+) => (/\S+)", subprocess.run(["ldd", BUTLER], capture_output=True, text=True, check=True).stdout))
    assert len(needed) > 3
    for library in set(needed) & set(linked):
        owner = next((said for path in (linked[library], os.path.realpath(linked[library])) for said in [  # /lib may be a link to /usr/lib
            subprocess.run(["dpkg", "-S", path], capture_output=True, text=True).stdout] if said), "")
        package = owner.partition(":")[0]
        assert not package or package == "libc6" or package.startswith("libglib2.0") or any(package.startswith(name) for name in installed), library
