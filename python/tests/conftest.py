"""What the tests share: the tree that the package was built from, its command, a tiny model and a real one."""
import json
import os
import subprocess
from pathlib import Path

import pytest

import butler

ROOT = Path(__file__).resolve().parents[2]
BUTLER = os.environ.get("BUTLER", str(ROOT / "butler"))
GQA = str(ROOT / "tests/data/models/llama-gqa.gguf")  # 2 layers, 4 query heads, 2 KV heads, context 256, 267 tokens
SMOLLM2 = Path(os.environ.get("BUTLER_MODELS", ROOT / "models")) / "smollm2.gguf"
PROMPT = "It was the best of times, it was the worst of times"


def command(*words):
    """The rows that the command prints."""
    done = subprocess.run([BUTLER, *map(str, words), "--json"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def model():
    with butler.Model(GQA) as model:
        yield model


@pytest.fixture
def engine(model):
    with butler.Engine(model, n_threads=2) as engine:
        yield engine


@pytest.fixture(scope="session")
def real():
    """An engine on SmolLM2, at the precision at which its answers to the tests' questions are not near ties."""
    if not SMOLLM2.exists():
        pytest.skip("models/smollm2.gguf is absent (./setup --model smollm2)")
    with butler.Model(SMOLLM2) as model, butler.Engine(model, activation_bits=16) as engine:
        yield engine
