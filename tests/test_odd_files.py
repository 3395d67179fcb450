"""Files that are odd but good enough: what butler makes of them, and what it says."""
import pytest

from cli import GPT2, GQA, butler, refuses, rows
from gguf_file import STRING, U32, Gguf

BOOL = 7


def test_unknown_pre_tokenizer(tmp_path):
    model, path = Gguf(GPT2), tmp_path / "m.gguf"
    model.put("tokenizer.ggml.pre", STRING, "of-tomorrow")
    model.write(path)
    known = rows("tokenize", "-m", GPT2, "-p", "It was 12")
    refuses(1, "tokenize", "-m", path, "-p", "It was 12", says=["of-tomorrow", "--pre", "qwen2"])
    refuses(1, "run", "-m", path, "-p", "It was", "-n", "2", says=["of-tomorrow"])
    assert rows("logits", "-m", path, "--ids", "1,2") == rows("logits", "-m", GPT2, "--ids", "1,2")  # needs no text
    pre = Gguf(GPT2).values.get("tokenizer.ggml.pre", (STRING, b"default"))[1].decode()
    assert rows("tokenize", "-m", path, "-p", "It was 12", "--pre", pre) == known
    refuses(2, "tokenize", "-m", path, "-p", "a", "--pre", "nosuch", says=["nosuch", "qwen2"])


@pytest.mark.parametrize("key, kind, value, says", [
    ("x.flag", BOOL, 2, "x.flag"),
    ("tokenizer.ggml.bos_token_id", U32, 9999, "bos_token_id is 9999"),
])
def test_odd_values_are_warnings(key, kind, value, says, tmp_path):
    model, path = Gguf(GQA), tmp_path / "m.gguf"
    model.put(key, 0 if kind == BOOL else kind, value)  # 2 is no bool to Python's struct: written as a byte
    model.write(path)
    if kind == BOOL:
        data = path.read_bytes()
        at = data.index(key.encode()) + len(key)
        path.write_bytes(data[:at] + bytes([BOOL, 0, 0, 0]) + data[at + 4:])
    result = butler("run", "-m", path, "-p", "It was", "-n", "3", "--temp", "0")
    assert result.stdout == butler("run", "-m", GQA, "-p", "It was", "-n", "3", "--temp", "0").stdout
    assert "warning" in result.stderr and says in result.stderr


def test_token_type_nobody_knows(tmp_path):
    model, path = Gguf(GQA), tmp_path / "m.gguf"
    types = model.values["tokenizer.ggml.token_type"][1]
    types[1][-1] = 42
    model.write(path)
    assert "token_type" in butler("tokenize", "-m", path, "-p", "It was").stderr
