"""Files that are odd but good enough: what butler makes of them, and what it says."""
import pytest

from cli import GPT2, GQA, butler, refuses, rows
from gguf_file import ARRAY, F32, STRING, U32, Gguf

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


U16, I32 = 2, 5


def split(path, n, model=GQA):
    """The model as n files beside each other; the first has the keys and no tensors, as other tools write it."""
    whole, names, paths = Gguf(model), list(Gguf(model).tensors), []
    for i in range(n):
        part = Gguf()
        part.values = dict(whole.values) if i == 0 else {}
        part.put("split.no", U16, i)
        part.put("split.count", U16, n)
        part.put("split.tensors.count", I32, len(names))
        part.tensors = {name: whole.tensors[name] for k, name in enumerate(names) if i > 0 and k % (n - 1) == i - 1}
        paths.append(f"{path}-{i + 1:05d}-of-{n:05d}.gguf")
        part.write(paths[-1])
    return paths


def test_split_files(tmp_path):
    paths = split(tmp_path / "m", 3)
    logits = lambda file: rows("logits", "-m", file, "--ids", "1,20,33", "--all")
    assert logits(paths[0]) == logits(GQA)
    butler("quantize", paths[0], tmp_path / "one.gguf", "q8_0")
    butler("quantize", GQA, tmp_path / "other.gguf", "q8_0")
    assert logits(tmp_path / "one.gguf") == logits(tmp_path / "other.gguf")


def test_split_files_that_lack_something(tmp_path):
    paths = split(tmp_path / "m", 3)
    refuses(1, "info", paths[1], says=["00002-of-00003", "open the first"])
    part = Gguf(paths[2])
    del part.tensors[next(iter(part.tensors))]
    part.write(paths[2])
    refuses(1, "info", paths[0], says=["split.tensors.count"])
    part.put("split.no", U16, 1)
    part.write(paths[2])
    refuses(1, "info", paths[0], says=["m-00003-of-00003.gguf", "split.no"])
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    refuses(1, "info", paths[0], says=["m-00003-of-00003.gguf", "cannot open"])
    (tmp_path / "m-00001-of-00003.gguf").rename(tmp_path / "renamed.gguf")
    refuses(1, "info", tmp_path / "renamed.gguf", says=["-00001-of-00003.gguf"])


def test_arrays_with_a_value_for_each_layer(tmp_path):
    model, path = Gguf(GQA), tmp_path / "m.gguf"
    n = model.values["llama.attention.head_count_kv"][1]
    model.put("llama.attention.head_count_kv", ARRAY, (U32, [n, n]))
    model.write(path)
    assert rows("logits", "-m", path, "--ids", "1,20") == rows("logits", "-m", GQA, "--ids", "1,20")
    for values, says in (([n, n + 1], "different"), ([n], "1 values for 2 layers"), ([99999, 99999], "99999")):
        model.put("llama.attention.head_count_kv", ARRAY, (U32, values))
        model.write(path)
        refuses(1, "info", path, says=["head_count_kv", says])


def test_two_tokens_for_the_beginning():
    bos = rows("tokenize", "-m", GQA, "-p", "It")[0]["ids"][0]
    result = butler("tokenize", "-m", GQA, "-p", "<s>It", "--json")
    assert result.stdout.startswith(f'{{"ids":[{bos},{bos},') and "there are two" in result.stderr
    assert butler("tokenize", "-m", GQA, "-p", "<s>It", "--no-special").stderr == ""


def test_all_that_min_p_and_top_p_allow():
    for flag in ("--min-p", "--top-p"):
        for value in ("0", "1"):
            butler("run", "-m", GQA, "-p", "It was", "-n", "3", flag, value)
        refuses(2, "run", "-m", GQA, "-p", "It was", "-n", "3", flag, "1.01", says=["from 0 to 1"])


def test_lines_that_end_in_cr_and_lf():
    """A command is one whatever ends its line, and no CR reaches the model."""
    unix = butler("chat", "-m", GQA, "--temp", "0", "-n", "4", input="hello\n/clear\nhello\n")
    dos = butler("chat", "-m", GQA, "--temp", "0", "-n", "4", input="hello\r\n/clear\r\nhello\r\n")
    assert dos.stdout == unix.stdout and "unknown command" not in dos.stderr


@pytest.mark.parametrize("flags, prefix", [
    ({}, True), ({"add_space_prefix": True}, True), ({"add_space_prefix": False}, False), ({"remove_extra_whitespaces": True}, True),
    ({"remove_extra_whitespaces": True, "add_space_prefix": False}, False), ({"escape_whitespaces": False}, True),
])
def test_flags_of_white_space(flags, prefix, tmp_path):
    """As in llama.cpp: of these keys a SentencePiece vocabulary follows add_space_prefix alone. Its ids are the same for these files."""
    model, path = Gguf(GQA), tmp_path / "m.gguf"
    for key, value in flags.items():
        model.put("tokenizer.ggml." + key, BOOL, value)
    model.write(path)
    said = lambda text: rows("tokenize", "-m", path, "-p", text, "--no-special")[0]["ids"]
    plain = rows("tokenize", "-m", GQA, "-p", "  two   spaces  ", "--no-special")[0]["ids"]
    assert said("  two   spaces  ") == (plain if prefix else plain[1:])
    assert len(said(" ")) == 1 + prefix and len(said("\tq")) == 2 + prefix


def test_a_vocabulary_without_scores(tmp_path):
    """All are 0 then, as in llama.cpp: of several merges the leftmost is made first."""
    files = []
    for name in ("none", "zeros"):
        model = Gguf(GQA)
        n = len(model.values["tokenizer.ggml.scores"][1][1])
        if name == "none":
            del model.values["tokenizer.ggml.scores"]
        else:
            model.put("tokenizer.ggml.scores", ARRAY, (F32, [0.0] * n))
        files.append(tmp_path / f"{name}.gguf")
        model.write(files[-1])
    ids = [rows("tokenize", "-m", file, "-p", "It was the best of times")[0]["ids"] for file in files]
    assert ids[0] == ids[1] and len(ids[0]) > 5
