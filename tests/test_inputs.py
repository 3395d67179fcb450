"""Files that are not what they seem, models that nobody named, and outputs that would destroy what is read."""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli import BUTLER, DONE, FAILED, GQA, PROMPT, USAGE, butler, refuses


# --------------------------------------------------------------------------------------- which model, which file

@pytest.mark.parametrize("command, folder", [("butler", "models"), ("bin/butler", "share/butler")])
def test_people_are_not_answered_by_the_small_model(command, folder, tmp_path):
    """ask, chat and serve take the one real model beside the command and name it, or stop and say how to get one."""
    (tmp_path / command).parent.mkdir(parents=True, exist_ok=True)
    models = tmp_path / folder
    models.mkdir(parents=True)
    binary = str(tmp_path / command)
    shutil.copy(BUTLER, binary)
    (tmp_path / "a.txt").write_text("It was the best of times.")
    for name in ("butler-default.gguf", "one.tokenbutler.gguf", "one.tokenbutler2.gguf", "one.centres.gguf", "big-00002-of-00002.gguf", ".part.gguf"):
        shutil.copy(GQA, models / name)
    answers = (["ask", "-f", tmp_path / "a.txt", "-n", "2", "--no-cache", "Who?"], ["chat", "-n", "2"], ["serve"])
    for args in answers:
        refuses(USAGE, *args, binary=binary, says=["no -m", "./setup --model", "-m FILE"])
    for name, n in (("one.gguf", 1), ("big-00001-of-00002.gguf", 2)):
        shutil.copy(GQA, models / name)
        for args in answers[:2] if n == 1 else answers:
            result = butler(*args, binary=binary, expect=DONE if n == 1 else USAGE)
            assert "one.gguf" in result.stderr and (n == 1 or ("2 models" in result.stderr and name in result.stderr))
    assert "butler-default.gguf" in butler("run", "-p", PROMPT, "-n", "1", binary=binary).stderr  # a run is named, too


def test_what_is_read_is_not_written_over(tmp_path):
    model = tmp_path / "m.gguf"
    shutil.copy(GQA, model)
    os.link(model, tmp_path / "link.gguf")
    (tmp_path / "symlink.gguf").symlink_to(model)
    before = model.read_bytes()
    for out in (model, tmp_path / "link.gguf", tmp_path / "symlink.gguf", f"{tmp_path}/../{tmp_path.name}/m.gguf"):
        refuses(USAGE, "quantize", model, out, "Q8_0", says=["same file", "m.gguf"])
        refuses(USAGE, "convert", model, "--tokenizer", model, "-o", out, says=["same file"])
        refuses(USAGE, "run", "-m", model, "-p", PROMPT, "--save-session", out, says=["same file"])
        refuses(USAGE, "report", model, "-o", out, says=["same file"])
        refuses(USAGE, "train", "-m", model, "--data", model, "-o", out, says=["same file"])
    assert model.read_bytes() == before


def test_quantize_sums_up_what_it_did_not_change(tmp_path):
    said = butler("quantize", GQA, tmp_path / "q4.gguf", "Q4_K").stderr  # its rows have 64 and 128 columns, Q4_K's blocks 256
    lines = [line for line in said.splitlines() if line.startswith("butler quantize:")]
    n = sum(" -> " in line and "norm" not in line for line in said.splitlines())
    assert lines == [f"butler quantize: 0 of {n} matrices became Q4_K",
                     f"butler quantize: {n} became Q8_0: its rows are no multiple of 256"]
    said = butler("quantize", tmp_path / "q4.gguf", tmp_path / "q6.gguf", "Q6_K").stderr
    assert f"butler quantize: {n} were not changed and are still Q8_0: its rows are no multiple of the block" in said
    said = butler("quantize", tmp_path / "q4.gguf", tmp_path / "q8.gguf", "Q8_0").stderr
    assert f"0 of {n} matrices became Q8_0" in said and f"{n} were Q8_0 before" in said


# ----------------------------------------------------------------------------------- outputs that stand for others

def test_a_link_is_written_through(tmp_path):
    """What it leads to gets the output; the link, which may be /dev/stdout, stays one."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link", "dangling"):
        butler("quantize", GQA, tmp_path / name, "Q8_0")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("closed", [(0,), (2,), (0, 1, 2)])
def test_closed_standard_files(closed, tmp_path):
    """Their descriptors are not given to files: messages would go into what is written."""
    def close():
        for fd in closed:
            os.close(fd)
    subprocess.run([BUTLER, "quantize", GQA, tmp_path / "out", "Q8_0"], preexec_fn=close, close_fds=False)
    butler("quantize", GQA, tmp_path / "right", "Q8_0")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "right").read_bytes()


def test_verdicts_and_conversations_spare_the_model(tmp_path):
    model, text = tmp_path / "m.gguf", tmp_path / "text"
    shutil.copy(GQA, model)
    text.write_text(PROMPT * 40)
    for output in (model, text):
        refuses(USAGE, "gate", "-m", model, "--length", "257", "--data", text, "-o", output, says=[output.name])
    said = butler("chat", "-m", model, "-n", "2", "--chat-template", "chatml", input=f"/save {model}\n").stderr
    assert "m.gguf" in said
    assert model.read_bytes() == Path(GQA).read_bytes() and text.read_text() == PROMPT * 40


@pytest.mark.parametrize("command", [["run", "-n", "2"], ["ask", "What?"], ["plan"]])
@pytest.mark.parametrize("fifo", [False, True])
def test_ctrl_c_while_input_is_waited_for(command, fifo, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    path = tmp_path / "fifo" if fifo else "-"
    flags = ["-m", GQA, *(["--no-cache"] if command[0] == "ask" else []), "-f", path]
    for signal_of, status in ((signal.SIGINT, FAILED), (signal.SIGTERM, -signal.SIGTERM)):
        with subprocess.Popen([BUTLER, command[0], *flags, *command[1:]], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(0.5)
            process.send_signal(signal_of)
            assert process.wait(10) in (status, FAILED)
            assert signal_of == signal.SIGTERM or "interrupted" in process.stderr.read().lower()


def test_words_that_nothing_takes(tmp_path):
    refuses(USAGE, "library", "verify", "xyz", "--cache", tmp_path, says=["verify takes no 'xyz'"])
    refuses(USAGE, "gate", "-m", GQA, "--length", ",".join(map(str, range(257, 420))), says=["--length"])


def test_lossless_with_the_default_policy():
    """auto is the default: naming it changes nothing."""
    args = ["run", "-m", GQA, "-p", PROMPT, "-n", "8", "--temp", "0", "--lossless"]
    assert butler(*args, "--kv", "auto").stdout == butler(*args).stdout


def test_reasons_and_names(tmp_path):
    """What ended an answer, which template is wrong, whether what is read is kept."""
    text, template = tmp_path / "text", tmp_path / "template"
    text.write_text(PROMPT)
    template.write_text("{% if %}")
    args = ["ask", "-m", GQA, "-f", text, "-n", "12", "-v", "--no-cache", "What?"]
    whole = butler(*args).stdout
    said = butler(*args, "--stop", whole[2:4]).stderr
    assert "(--stop)" in said and "(end of text)" not in said
    assert f"--chat-template {template}: " in butler(*args, "--chat-template", template, expect=FAILED).stderr
    assert "kept on disk: nothing" in butler("plan", "-m", GQA, "-f", text, "-n", "4", "--cache", text / "below", "--kv", "full").stdout
    refuses(USAGE, "train", "-m", GQA, "--data", text, "-o", tmp_path / "out", "--tokens", "64", "--steps", "2", says=["give one"])
    long = tmp_path / "long"
    long.write_text(PROMPT * 40)
    assert "streaming" not in butler("plan", "-m", GQA, "-f", long, expect=FAILED).stderr


def test_undo_names_the_question(tmp_path):
    document = tmp_path / "a.txt"
    document.write_text("The first line of it.\nThe second.\n")
    said = butler("chat", "-m", GQA, "-n", "2", "--chat-template", "chatml", "-c", "256", input=f"/file {document}\nWhat is it?\n/undo\nAgain\n/undo\n").stderr
    assert "taken back, with what is before it: What is it?" in said and "taken back: Again" in said
