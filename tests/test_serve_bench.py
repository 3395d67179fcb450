"""The server's load generator and its endurance test do what they say, in small."""
import json
import os
import shutil
import subprocess
import sys

import pytest

from cli import BUTLER, GQA, ROOT
from test_serve import pytestmark  # noqa: F401  without libevent all are skipped


def bench(name, *args, expect=0):
    result = subprocess.run([sys.executable, ROOT / "bench" / name, *map(str, args)], capture_output=True, text=True, timeout=300,
                            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert result.returncode == expect, result.stderr
    return result


def test_load(tmp_path):
    out = tmp_path / "load.jsonl"
    flags = ["-o", out, "--clients", "1,3", "--requests", 2, "--documents", 2, "--document-tokens", 128, "--tokens", 20, "--threads", 1,
             "--butler", BUTLER, "--kv", "full", "--kv", "tinyserve:budget=32"]
    said = bench("serve_load.py", GQA, *flags)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["policy"], row["clients"]) for row in rows] == [("full", 1), ("tinyserve:budget=32", 1), ("full", 3), ("tinyserve:budget=32", 3)]
    for row in rows:
        n = 2 * row["clients"]
        assert row["errors"] == 0 and row["generated"] == 20 * n and row["prompt_tokens"] > 128 * n
        assert 0 < row["first_p50"] <= row["first_p99"] < row["seconds"] and 0 < row["between_p50"] <= row["between_p99"]
        assert row["read_share"] == 1 if row["policy"] == "full" else row["read_share"] < 0.5
        assert row["tok_s"] * row["seconds"] > 0 and row["peak_bytes"] > 1e6
    assert rows[2]["cached_tokens"] >= 128 * 2  # six requests about two documents
    assert said.stdout.count("\n") == 6
    again = bench("serve_load.py", GQA, *flags)
    assert again.stderr.count("already measured") == 4 and again.stdout == said.stdout
    assert bench("serve_load.py", "--table", out).stdout == said.stdout


@pytest.mark.skipif(not shutil.which("haproxy"), reason="there is no haproxy")
def test_load_on_replicas(tmp_path):
    out = tmp_path / "load.jsonl"
    bench("serve_load.py", GQA, "-o", out, "--clients", 4, "--requests", 3, "--documents", 2, "--document-tokens", 128, "--tokens", 20,
          "--threads", 2, "--butler", BUTLER, "--kv", "full", "--replicas")
    row = json.loads(out.read_text())
    assert row["server"] == "butler, 2 replicas" and row["errors"] == 0 and row["generated"] == 20 * 12
    assert row["cached_tokens"] >= 128 * 4  # each replica reads each document once; of prompts that come together both may be read


def test_soak(tmp_path):
    out = tmp_path / "soak.jsonl"
    flags = ["--seconds", 4, "--interval", 0.2, "--clients", 3, "--characters", 150, "--threads", 1, "--butler", BUTLER, "-o", out]
    result = json.loads(bench("serve_soak.py", GQA, *flags, "--trend", 1, "--bound", 1).stdout)
    assert result["wrong"] == 0 and not result["faults"] and len(result["requests"]) == 8 and min(result["requests"].values()) > 0
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(samples) >= 10 and all(sample["bytes"] > 1e6 for sample in samples)
    failed = bench("serve_soak.py", GQA, *flags, "--bound", -0.5, expect=1)
    assert "memory grew" in failed.stderr


def test_latency():
    result = json.loads(bench("serve_latency.py", GQA, "--tokens", 200, "--prompts", 40, "--threads", 1, "--butler", BUTLER).stdout)
    assert result["prompts"] == 40 and result["tokens"] == 200 and result["answers"] >= 3
    assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["max_ms"] <= 1000 * result["seconds"] + 1
    refused = bench("serve_latency.py", GQA, "--tokens", 100000, "--threads", 1, "--butler", BUTLER, expect=1)
    assert "status 400" in refused.stderr and "n_ctx" in refused.stderr
