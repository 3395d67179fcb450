"""--rope-scaling, --rope-scale and --yarn-orig-ctx: what a file's own keys give, for files that have none or others."""
import re

import pytest

from cli import GQA, MODELS, USAGE, butler, rows

IDS = ",".join(str(i % 200 + 3) for i in range(60))
YARN = ["--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "1024"]  # what llama-yarn.gguf has


def logits(model, *flags):
    return butler("logits", "-m", model, "--ids", IDS, "--all", "--json", *flags).stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A file's weights without its keys of rope scaling, which become keys that nobody reads."""
    def make(name):
        path = tmp_path_factory.mktemp("bare") / name
        content = (MODELS / name).read_bytes()
        assert b"llama.rope.scaling." in content
        path.write_bytes(content.replace(b"llama.rope.scaling.", b"llama.rope.ignored."))
        return path
    return make


def test_as_the_keys(bare):
    """The logits of a file with the keys, at every position, to the last bit; tests/test_logits.c has those of transformers."""
    yarn, linear = MODELS / "llama-yarn.gguf", MODELS / "llama-linear.gguf"
    factor = next(line for line in ("2", "4", "8") if logits(bare("llama-linear.gguf"), "--rope-scaling", "linear", "--rope-scale", line) == logits(linear))
    assert float(factor) > 1
    stripped = bare("llama-yarn.gguf")
    assert logits(stripped) != logits(yarn) == logits(stripped, *YARN) == logits(yarn, *YARN[:4])
    assert logits(yarn, "--rope-scaling", "none") == logits(stripped)
    assert logits(stripped, "--rope-scaling", "linear", "--rope-scale", "1") == logits(stripped)


def test_the_context_grows():
    info = butler("info", "-m", MODELS / "llama-yarn.gguf", *YARN[:3], "8").stdout
    assert "context         8192 tokens by --rope-scaling yarn:8:1024\n" in info
    assert rows("info", "-m", GQA, *YARN, "--json")[-1]["n_ctx_train"] == 4096
    assert rows("info", "-m", GQA, "--json")[-1]["rope_scaling"] is None
    assert rows("info", "-m", GQA, *YARN, "--json")[-1]["rope_scaling"] == "yarn:4:1024"


def test_nothing_is_taken_over(tmp_path):
    """Sessions and kept texts of another scaling are those of another model."""
    text = tmp_path / "text"
    text.write_text("It was the best of times, it was the worst of times. " * 3)
    def kept(*flags):
        said = butler("ask", "-m", GQA, "-f", text, "-n", "2", "--cache", tmp_path / "library", "-v", "What?", *flags).stderr
        return int(re.search(r"(\d+) read before", said).group(1))
    assert kept() == 0 < kept()
    assert kept(*YARN) == 0 < kept(*YARN)
    assert kept("--rope-scaling", "linear", "--rope-scale", "4", "--yarn-orig-ctx", "1024") == 0
    butler("run", "-m", GQA, "-p", "It was", "-n", "2", *YARN, "--save-session", tmp_path / "s")
    assert butler("run", "-m", GQA, "--load-session", tmp_path / "s", "-n", "2", expect=USAGE).stderr.count("saved with another model")
    butler("run", "-m", GQA, "--load-session", tmp_path / "s", "-n", "2", *YARN)


@pytest.mark.parametrize("flags, message", [
    (["--rope-scale", "4"], "needs a rope scaling"),
    (["--yarn-orig-ctx", "4"], "needs a rope scaling"),
    (["--rope-scaling", "longrope", "--rope-scale", "4"], "'longrope' is not none, linear or yarn"),
    (["--rope-scaling", "yarn"], "from 1 to 1000"),
    (["--rope-scaling", "yarn", "--rope-scale", "0.5"], "from 1 to 1000"),
    (["--rope-scaling", "yarn", "--rope-scale", "nan"], "--rope-scale"),
    (["--rope-scaling", "none", "--rope-scale", "2"], "it has none"),
])
def test_errors(flags, message):
    assert message in butler("info", "-m", GQA, *flags, expect=USAGE).stderr


def test_models_that_have_none():
    assert "has no rotary positions" in butler("info", "-m", MODELS / "gpt2.gguf", *YARN, expect=USAGE).stderr
    assert "factors of its own" in butler("info", "-m", MODELS / "phi3-longrope.gguf", *YARN, expect=USAGE).stderr
