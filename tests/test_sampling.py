"""The flags of run, ask and chat that keep tokens from being drawn or wish for them."""
import pytest

from cli import GQA, N_VOCAB, PROMPT, USAGE, butler, rows

ASK = ["ask", "-m", GQA, "--no-cache", "-t", 1, "--temp", 0, "-n", 6]


def ids(*flags, n=6):
    return rows("run", "-m", GQA, "-p", PROMPT, "-n", n, "--temp", 0, "-t", 1, *flags)[-1]["ids"]


def end_of_text():
    """A token that ends a text."""
    return rows("info", GQA)[0]["end_tokens"][0]["id"]


def test_logit_bias():
    plain = ids()
    assert ids("--logit-bias", "100:1000") == [100] * 6
    assert plain[0] not in ids("--logit-bias", f"{plain[0]}:-inf") and plain[0] not in ids("--logit-bias", f"{plain[0]}:-1e9")
    assert ids("--logit-bias", "100:1000", "--logit-bias=101:1001") == [101] * 6
    assert ids("--logit-bias", "100:0") == plain


def test_least_length():
    end = end_of_text()
    wish = ["--logit-bias", f"{end}:1000"]
    assert ids(*wish) == []
    assert len(ids(*wish, "--min-tokens", 3)) == 3 and end not in ids(*wish, "--min-tokens", 3)
    assert len(ids(*wish, "--ignore-eos")) == len(ids(*wish, "--min-tokens", 3, "--ignore-eos")) == 6


@pytest.mark.parametrize("flag", [[], ["--min-tokens", 4], ["--ignore-eos"]])
def test_least_length_of_answers(flag, tmp_path):
    """ask and chat: the wish ends every answer at once, but where the flag forbids that."""
    (tmp_path / "document").write_text("A document.")
    wish = ["--logit-bias", f"{end_of_text()}:1000", "--logit-bias", "100:500", *flag]
    letter = butler("run", "-m", GQA, "-p", PROMPT, "-n", 1, "--temp", 0, "--logit-bias", "100:1000").stdout.strip("\n")
    n = {0: 0, 1: 6, 2: 4}[len(flag)]
    assert butler(*ASK, *wish, "-f", tmp_path / "document", "What?").stdout.strip("\n").lstrip() == (letter * n).lstrip()
    talk = butler("chat", "-m", GQA, "--temp", 0, "-t", 1, "-n", 6, *wish, input="Hi\nHo\n").stdout
    assert talk.count(letter) == 2 * n


@pytest.mark.parametrize("command", ["run", "ask", "chat"])
@pytest.mark.parametrize("flag, value, says", [
    ("--logit-bias", "5", "a token id, a colon and a number"), ("--logit-bias", "5:", "a token id"), ("--logit-bias", ":1", "a token id"),
    ("--logit-bias", "-1:1", "a token id"), ("--logit-bias", "a:1", "a token id"), ("--logit-bias", "5:inf", "a token id"),
    ("--logit-bias", "5:nan", "a token id"), ("--logit-bias", "5:1x", "a token id"), ("--logit-bias", "99999999999:1", "a token id"),
    ("--min-tokens", "-1", "0 or more"), ("--min-tokens", "1.5", "0 or more"),
])
def test_bad_values(command, flag, value, says):
    error = butler(command, "-m", GQA, flag, value, expect=USAGE).stderr
    assert flag in error and says in error


def test_bias_of_no_token(tmp_path):
    assert f"0 to {N_VOCAB - 1}" in butler("run", "-m", GQA, "-p", "a", "--logit-bias", f"{N_VOCAB}:1", expect=USAGE).stderr
    too_many = [word for i in range(65) for word in ("--logit-bias", f"{i}:1")]
    assert "up to 64 times" in butler("run", "-m", GQA, "-p", "a", *too_many, expect=USAGE).stderr
