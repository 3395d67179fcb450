"""tools/compare/prompt_perplexity.py: prompts and decoding give the same perplexity, and flags are passed on."""
import subprocess
import sys

from cli import ROOT, rows

MODEL = ROOT / "models" / "butler-default.gguf"
TEXT = ROOT / "models" / "long_text.txt"


def measure(*flags):
    """The tool's line as numbers, each by the word before it."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "compare" / "prompt_perplexity.py", MODEL, TEXT, "--length", "192", "--windows", "2",
                           *(f"--flag={flag}" for flag in flags)], check=True, capture_output=True, text=True)
    words = done.stdout.replace("+-", "interval").split()
    return dict(zip(words[::2], map(float, words[1::2])))


def test_agrees_with_decoding(tmp_path):
    """`butler eval ppl` decodes its windows token by token, and counts the same tokens."""
    result = measure()
    assert (result["tokens"], result["ratio"], result["rms"]) == (2 * 192, 1, 0)
    cut = tmp_path / "cut.txt"
    cut.write_bytes(TEXT.read_bytes()[:2000])
    one = subprocess.run([sys.executable, ROOT / "tools" / "compare" / "prompt_perplexity.py", MODEL, cut, "--length", "192", "--windows", "1"],
                         check=True, capture_output=True, text=True).stdout.split()
    decoded = rows("eval", "ppl", "-m", MODEL, "--data", cut, "--length", "192", "--limit", "1", "--kv-type", "f32")
    ppl, = (row["value"] for row in decoded if row["metric"] == "ppl")
    assert abs(float(one[3]) / ppl - 1) < 5e-3  # prompts and steps add in different orders; rounding to 8 bits makes that larger


def test_a_flag_is_passed_on():
    assert 0 < measure("--kv-type=q8_0")["rms"] < 0.5
