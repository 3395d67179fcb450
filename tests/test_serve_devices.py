"""butler serve on two devices: stand-ins for CUDA's libraries, which test_cuda is built with."""
import json
import os
import threading
import time

import pytest

from cli import FAILED, GQA, USAGE, butler
from test_gpu_cuda import FAKE, needs_fake
from test_serve import Server, pytestmark as needs_libevent

pytestmark = [needs_libevent, needs_fake]
LONG = "In the year of the great flood the keeper of the lighthouse wrote a letter to his daughter in the town."
OTHER = "A clock that runs a minute fast is of more use to a traveller than one which has stopped for good."


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE))
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")


@pytest.fixture
def server(fake, tmp_path):
    server = Server("--device", "cuda:all", "--kv-ram", "64M", "--kv", "full", "--cache", tmp_path / "library")
    yield server
    server.process.terminate()
    server.process.wait(20)


def jobs(server):
    """How many each device was given."""
    return [server.metric(f'butler:device_jobs_total{{device="{i}"}}') for i in range(2)]


class Busy:
    """A text that goes on until the end of the block, on the device that is chosen for it."""

    def __init__(self, server, prompt):
        self.server, self.before = server, sum(jobs(server))
        self.thread = threading.Thread(target=server.stream, args=["/completion"], kwargs={"prompt": prompt, "n_predict": 100, "ignore_eos": True})

    def __enter__(self):
        self.thread.start()
        while sum(jobs(self.server)) == self.before:
            time.sleep(0.01)

    def __exit__(self, *_):
        assert sum(self.server.metric(f'butler:device_texts{{device="{i}"}}') for i in range(2)) > 0, "it was over before"
        self.thread.join()


def ask(server, prompt):
    return server.post("/completion", {"prompt": prompt, "n_predict": 3, "temperature": 0, "ignore_eos": True})


def test_placement(server):
    """The device with the fewest texts, or the one that read the prompt's beginning; answers are the same on both."""
    ask(server, OTHER)
    assert jobs(server) == [1, 0]
    with Busy(server, OTHER):
        assert jobs(server) == [2, 0]
        ask(server, LONG)
        assert jobs(server) == [2, 1]
    server.wait_idle()
    before = server.metric("butler:prompt_tokens_cached_total")
    again = ask(server, LONG)
    assert jobs(server) == [2, 2] and server.metric("butler:prompt_tokens_cached_total") > before
    with Busy(server, LONG):
        assert jobs(server) == [2, 3]
        before = server.metric("butler:library_tokens_total")
        moved = ask(server, LONG)  # its reader is busy: the other finds the text in the library
        assert jobs(server) == [3, 3] and server.metric("butler:library_tokens_total") > before
    assert moved["content"] == again["content"]


def test_other_commands(fake):
    result = butler("run", "-m", GQA, "-p", "It", "--device", "cuda:all", expect=USAGE)
    assert "--device cuda:all: only serve and bench use several devices; this takes one, such as cuda:0" in result.stderr


def test_no_device(fake, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "0")
    assert "--device cuda:all: there is no such device here" in butler("serve", "-m", GQA, "--device", "cuda:all", expect=FAILED).stderr


def lose(server):
    """Asks until a device is lost; returns the answer's error."""
    for _ in range(200):
        status, _, text = server.request("POST", "/completion", {"prompt": OTHER, "n_predict": 3, "cache_prompt": False})
        if status != 200:
            assert status == 500
            return json.loads(text)["error"]["message"]
    raise AssertionError("no device was lost")


def failing(server):
    return [server.metric(f'butler:device_failing{{device="{i}"}}') for i in range(2)]


def test_one_is_lost(fake, monkeypatch):
    """The device that was lost has the fewest texts, and gets none; the other answers."""
    monkeypatch.setenv("FAKE_CUDA_KERNELS", "500")
    server = Server("--device", "cuda:all", "--kv-ram", "64M", "--kv", "full")
    assert failing(server) == [0, 0]
    assert "or the device was lost" in lose(server)
    assert failing(server) == [1, 0]
    before = jobs(server)
    for _ in range(3):
        ask(server, OTHER)  # whose reader was the lost one
    assert jobs(server) == [before[0], before[1] + 3]
    assert server.get("/health") == {"status": "ok"}
    server.stop()


def test_all_are_lost(fake, monkeypatch):
    """Who watches the server restarts it."""
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "1")
    monkeypatch.setenv("FAKE_CUDA_KERNELS", "500")
    server = Server("--device", "cuda:0", "--kv-ram", "64M", "--kv", "full")
    assert server.get("/health") == {"status": "ok"}
    lose(server)
    status, _, text = server.request("GET", "/health")
    assert status == 503 and "only a restart helps" in json.loads(text)["error"]["message"]
    lose(server)  # it still answers
    server.stop()
