"""Texts with a gap: /infill and "suffix" are the model's own tokens around it, found by the file's keys or by their spelling."""
import pytest

from cli import GQA
from gguf_file import ARRAY, STRING, U32, Gguf
from test_serve import Server, pytestmark  # noqa: F401  (skips where butler is built without libevent)

MARKS = {"pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>", "mid": "<|fim_middle|>", "rep": "<|repo_name|>", "sep": "<|file_sep|>"}
BEFORE, BEHIND = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
FIELDS = {"temperature": 0, "n_predict": 12, "ignore_eos": True}


def write(path, names, by_key):
    """The model of other tests, some of whose tokens are marks; by_key: of any spelling."""
    model = Gguf(GQA)
    tokens = [t.decode() for t in model.values["tokenizer.ggml.tokens"][1][1]]
    types = list(model.values["tokenizer.ggml.token_type"][1][1])
    ids = {}
    for i, name in enumerate(names):
        ids[name] = at = len(tokens) - 1 - i
        tokens[at] = f"<mark {i}>" if by_key else MARKS[name]
        types[at] = 3
        if by_key:
            model.put(f"tokenizer.ggml.fim_{name}_token_id", U32, at)
    model.put("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))
    model.put("tokenizer.ggml.token_type", ARRAY, (5, types))
    model.write(path)
    return ids


@pytest.fixture(scope="module", params=["spelling", "key"])
def server(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("infill") / "fim.gguf"
    ids = write(path, MARKS, request.param == "key")
    s = Server("-c", 256, model=path)
    s.ids = ids
    yield s
    assert s.stop() == 0


def tokens(server, text, special=False):
    return server.post("/tokenize", {"content": text, "add_special": special, "parse_special": False})["tokens"]


def by_hand(server, before=BEFORE, behind=BEHIND, files=()):
    ids, bos = server.ids, [t for t in tokens(server, "", True)]
    extra = [ids["rep"], *tokens(server, "repository\n")] if files else []
    for name, text in files:
        extra += [ids["sep"], *tokens(server, name), *tokens(server, "\n"), *tokens(server, text)]
    return bos + extra + [ids["pre"], *tokens(server, before), ids["suf"], *tokens(server, behind), ids["mid"]]


def test_the_gap(server):
    wanted = server.post("/completion", {"prompt": by_hand(server), **FIELDS})
    body = {"input_prefix": BEFORE, "input_suffix": BEHIND, **FIELDS}
    for path in ("/infill", "/completion", "/completions"):
        answer = server.post(path, body)
        assert (answer["content"], answer["tokens_evaluated"]) == (wanted["content"], len(by_hand(server)))
    assert server.post("/infill", {**body, "input_prefix": "", "prompt": BEFORE})["content"] == wanted["content"]
    for prompt in (BEFORE, tokens(server, BEFORE)):
        answer = server.post("/v1/completions", {"prompt": prompt, "suffix": BEHIND, "max_tokens": 12, "temperature": 0, "ignore_eos": True})
        assert answer["choices"][0]["text"] == wanted["content"] and answer["usage"]["prompt_tokens"] == len(by_hand(server))
    pieces = server.stream("/infill", **body)
    assert "".join(piece["content"] for piece in pieces) == wanted["content"]
    plain = server.post("/v1/completions", {"prompt": BEFORE, "suffix": "", "max_tokens": 1, "temperature": 0})
    assert plain["usage"]["prompt_tokens"] < len(by_hand(server))


def test_other_files(server):
    files = [("a.py", "x = 1\n"), ("b.py", "y = 2\n")]
    body = {"input_prefix": BEFORE, "input_suffix": BEHIND, "input_extra": [{"filename": name, "text": text} for name, text in files], **FIELDS}
    wanted = server.post("/completion", {"prompt": by_hand(server, files=files), **FIELDS})
    answer = server.post("/infill", body)
    assert (answer["content"], answer["tokens_evaluated"]) == (wanted["content"], len(by_hand(server, files=files)))


def test_what_has_no_room(server):
    """Editors send whole files: what is near the gap stays, the files before it go first."""
    body = {"input_prefix": "a " * 400 + BEFORE, "input_suffix": BEHIND + "b " * 400, "input_extra": [{"text": "c " * 400}], **FIELDS}
    answer = server.post("/infill", body)
    assert 200 < answer["tokens_evaluated"] <= 256 - 12
    error = server.post("/v1/completions", {"prompt": body["input_prefix"], "suffix": BEHIND, "max_tokens": 4}, expect=400)["error"]
    assert error["type"] == "exceed_context_size_error"
    short = server.post("/infill", {**body, "input_prefix": BEFORE, "input_suffix": BEHIND})
    assert short["tokens_evaluated"] == len(by_hand(server))


def test_lines(server):
    """n_indent and t_max_predict_ms: an answer of several lines, which a grammar gives, ends where the editor wants no more."""
    body = {"input_prefix": BEFORE, "input_suffix": BEHIND, "n_predict": 40, "temperature": 0, "grammar": 'root ::= "a\\n  b\\nc\\nd\\n"'}
    assert server.post("/infill", body)["content"] == "a\n  b\nc\nd\n"
    assert server.post("/infill", {**body, "n_indent": 2})["content"] == "a\n  b\n"
    assert server.post("/infill", {**body, "n_indent": 3})["content"].rstrip(" ") == "a\n"
    assert server.post("/infill", {**body, "t_max_predict_ms": 0.001})["content"] == "a\n  b\n"
    assert server.post("/infill", {**body, "t_max_predict_ms": 1e8})["content"] == "a\n  b\nc\nd\n"


@pytest.mark.parametrize("path, fields, param", [
    ("/infill", {"input_prefix": "a"}, "input_suffix"), ("/infill", {"input_suffix": "a"}, "input_prefix"), ("/infill", {"prompt": "a"}, "input_prefix"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": 5}, "prompt"), ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": 5}, "input_extra"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]}, "input_extra[0]"),
    ("/v1/completions", {"prompt": "a", "suffix": 5}, "suffix"), ("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True}, "echo")])
def test_refused(server, path, fields, param):
    assert server.post(path, {**fields, "max_tokens": 2}, expect=400)["error"]["param"] == param


def test_models_without_the_tokens(tmp_path):
    write(tmp_path / "two.gguf", ["pre", "suf"], False)
    s = Server(model=tmp_path / "two.gguf")
    for path, body, param in (("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix"), ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix")):
        error = s.post(path, body, expect=400)["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param) and "fill-in-the-middle" in error["message"]
    assert s.stop() == 0
