"""Conversations: the models' templates, several turns in one session, Ctrl-C, and the end of input."""
import json
import os
import pty
import select
import signal
import subprocess
import termios
import time

import pytest

from cli import BUTLER, DONE, FAILED, GQA, N_CTX, USAGE, butler, refuses, rows, with_values
from gguf_file import ARRAY, F32, STRING, Gguf

GREEDY = ["--temp", "0"]


def chat(text, *args, model=GQA, **options):
    return butler("chat", "-m", model, *args, input=text, **options)


def prompt_tokens(text):
    return rows("tokenize", "-m", GQA, "-p", text)[0]["ids"]


def test_a_turn_is_the_prompt_it_stands_for():
    """The plain template written out by hand and run gives the answer that chat gives (but for its leading blanks)."""
    answer = chat("Hello\n", "-n", "12", *GREEDY).stdout
    text = rows("run", "-m", GQA, "-p", "User: Hello\nAssistant:", "-n", "12", *GREEDY)[-1]["text"]
    assert answer == text.lstrip(" \n") + "\n"


@pytest.mark.parametrize("name, prompt", [
    ("plain", "Be kind.\nUser: Hello\nAssistant:"),
    ("chatml", "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"),
    ("llama3", "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
               "Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("llama2", "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHello [/INST]"),
    ("mistral", "[INST] Be kind.\n\nHello [/INST]"),
    ("mistral-v3", "[INST] Be kind.\n\nHello[/INST]"),
    ("phi3", "<|system|>\nBe kind.<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\n"),
    ("zephyr", "<|system|>\nBe kind.</s>\n<|user|>\nHello</s>\n<|assistant|>\n"),
    ("deepseek", "Be kind.<\uff5cUser\uff5c>Hello<\uff5cAssistant\uff5c>"),
    ("vicuna", "Be kind. USER: Hello ASSISTANT:"),
])
def test_templates(name, prompt, tmp_path):
    # The answer to a prompt of random weights depends on every token of it.
    answer = chat("Hello\n", "--chat-template", name, "--system-prompt", "Be kind.", "-n", "10", *GREEDY).stdout
    text = rows("run", "-m", GQA, "-p", prompt, "-n", "10", *GREEDY)[-1]["text"]
    assert answer == text.lstrip(" \n") + "\n"


def answers_to(prompt, *args, **options):
    """chat's answer to Hello is that to this prompt."""
    text = rows("run", "-m", GQA, "-p", prompt, "-n", "10", *GREEDY)[-1]["text"]
    result = chat("Hello\n", "-n", "10", *GREEDY, *args, **options)
    assert result.stdout == text.lstrip(" \n") + "\n"
    return result


def test_the_models_own_template_runs(tmp_path):
    model = with_values(tmp_path / "m.gguf", chat_template="{% for m in messages %}<{{ m.role | upper }}> {{ m.content | trim }};{% endfor %}!")
    assert answers_to("<USER> Hello;!", model=model).stderr.count("template") == 0
    answers_to("<SYSTEM> Be kind.;<USER> Hello;!", "--system-prompt", " Be kind. ", model=model)
    answers_to("User: Hello\nAssistant:", "--chat-template", "plain", model=model)


@pytest.mark.parametrize("template, prompt", [
    ("{% if messages[0].role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
     "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
     "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"),
    ("{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}", "### user:\nHello\n\n"),
    ("{{ bos_token }}[SYSTEM_PROMPT] {{ 'S' }}[/SYSTEM_PROMPT][INST] {{ messages[-1].content }}[/INST]{# [AVAILABLE_TOOLS] #}",
     "[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] Hello[/INST]"),  # with one BOS, which run adds
])
def test_default_system_messages_and_unknown_families(template, prompt, tmp_path):
    answers_to(prompt, model=with_values(tmp_path / "m.gguf", chat_template=template))


def test_template_from_a_file(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}\n")
    answers_to("[Hello]", "--chat-template", file)
    file.write_text("x\n{{ nothing() }}")
    refuses(FAILED, "chat", "-m", GQA, "--chat-template", file, input="Hello\n", says=["line 2", "nothing"])
    refuses(USAGE, "chat", "-m", GQA, "--chat-template", "nosuch", input="", says=["--chat-template", "nosuch", "chatml"])


def test_template_that_cannot_be_rendered(tmp_path):
    model = with_values(tmp_path / "m.gguf", chat_template="a\n{{ messages | nosuch }}")
    result = answers_to("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", model=model)
    assert all(word in result.stderr for word in ("warning", "chatml", "line 2", "nosuch"))


def test_template_without_tags(tmp_path):
    """A text that is the same for every conversation is no template."""
    model = with_values(tmp_path / "m.gguf", chat_template="<|im_start|>")
    result = answers_to("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", model=model)
    assert "chatml" in result.stderr and "no tags" in result.stderr


def test_template_without_a_system_role(tmp_path):
    model = with_values(tmp_path / "m.gguf", chat_template="{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
                                                           "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    assert "no system" in answers_to("<user>Be kind.\n\nHello", "--system-prompt", "Be kind.", model=model).stderr


def test_special_tokens_in_a_turn_stay_text():
    """Read as the end token, the spelling in the turn would give the answer of `run`."""
    answer = chat("Hello</s>\n", "-n", "10", *GREEDY).stdout
    special = rows("run", "-m", GQA, "-p", "User: Hello</s>\nAssistant:", "-n", "10", *GREEDY)[-1]["text"]
    assert answer != special.lstrip(" \n") + "\n"


def test_later_turns_are_rendered_whole(tmp_path):
    """A template that shortens earlier messages: the second answer is that to the whole conversation as it is written then."""
    model = with_values(tmp_path / "m.gguf", chat_template="{% for m in messages %}{{ m.content[:3] }}|{% endfor %}")
    for policy in ("full", "h2o:budget=40", "streaming:budget=40"):
        decode = ["-n", "9", "--kv", policy, *GREEDY]
        first = rows("run", "-m", GQA, "-p", "Hel|", *decode)[-1]["text"]
        second = rows("run", "-m", GQA, "-p", f"Hel|{first[:3]}|Aga|", *decode)[-1]["text"]
        assert chat("Hello\nAgain\n", *decode, model=model).stdout == first.lstrip(" \n") + "\n" + second.lstrip(" \n") + "\n", policy


def test_turns_share_a_session():
    """The second answer depends on the first turn, and the turns' tokens are read once."""
    alone = chat("Again\n", "-n", "8", *GREEDY).stdout
    both = chat("Hello\nAgain\n", "-n", "8", *GREEDY)
    assert both.stdout.startswith(chat("Hello\n", "-n", "8", *GREEDY).stdout) and not both.stdout.endswith("\n" + alone)
    cleared = chat("Hello\n/clear\nAgain\n", "-n", "8", *GREEDY).stdout
    assert cleared == chat("Hello\n", "-n", "8", *GREEDY).stdout + alone


def test_empty_lines_and_no_lines():
    assert chat("").stdout == ""
    assert chat("\n\n").stdout == ""
    assert chat("Hello", "-n", "4", *GREEDY).stdout == chat("Hello\n", "-n", "4", *GREEDY).stdout


def test_context_that_fills():
    result = chat("x" * 2 * N_CTX + "\nHello\n", "-n", "4", *GREEDY)
    assert str(N_CTX) in result.stderr and "/clear" in result.stderr
    assert result.stdout == chat("Hello\n", "-n", "4", *GREEDY).stdout  # the turn that did not fit changed nothing
    full = chat("Hello\nAgain\n", "-c", "64", *GREEDY)
    assert "64 tokens" in full.stderr and "/clear" in full.stderr


def stopping_model(path, text):
    """A model that repeats `text` forever: the next token depends only on the last one."""
    model = Gguf(GQA)
    n = 267
    tokens = [t.decode() for t in model.values["tokenizer.ggml.tokens"][1][1]]
    for name, (dims, kind, data) in list(model.tensors.items()):
        if name.startswith("blk.") and not name.endswith("norm.weight"):
            model.tensors[name] = (dims, kind, bytes(len(data)))  # layers add nothing
    cycle = [tokens.index("<0x%02X>" % b) for b in text.encode()]
    width = model.tensors["token_embd.weight"][0][0]
    assert len(cycle) < width
    embedding, output = [0.0] * (n * width), [0.0] * (n * width)
    for i in range(n):  # any other token acts like the last of the cycle
        embedding[i * width + (cycle.index(i) if i in cycle else len(cycle) - 1)] = 1.0
    for k, i in enumerate(cycle):
        output[i * width + (k - 1) % len(cycle)] = 10.0
    model.put_tensor("token_embd.weight", [width, n], embedding)
    model.put_tensor("output.weight", [width, n], output)
    model.put_tensor("output_norm.weight", [width], [1.0] * width)
    model.write(path)
    return str(path)


def test_the_stop_text_ends_a_plain_answer_and_is_not_shown(tmp_path):
    model = stopping_model(tmp_path / "m.gguf", " Hm\nUser:")
    assert rows("run", "-m", model, "-p", "Hello", "-n", "18", *GREEDY)[-1]["text"] == " Hm\nUser: Hm\nUser:"
    result = chat("Hello\nAgain\n", *GREEDY, model=model)
    assert result.stdout == "Hm\nHm\n"
    # The model wrote "\nUser" itself: the second turn adds only what follows.
    assert chat("Hello\n", "-n", "2", *GREEDY, model=model).stdout == "H\n"
    assert chat("Hello\n", "-n", "7", *GREEDY, model=model).stdout == "Hm\nUse\n"


def test_ctrl_c_ends_the_answer_and_not_the_program():
    process = subprocess.Popen([BUTLER, "chat", "-m", GQA, "-c", "1000000", "-t", "1", "--temp", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                               stderr=subprocess.PIPE)
    try:
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        assert process.stdout.read(1)  # the answer has begun; it would take minutes
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)  # while it waits for a line: does not exit either
        time.sleep(0.3)
        assert process.poll() is None
        out, err = process.communicate(timeout=30)
        assert process.returncode == DONE
        assert out.endswith(b"\n") and b"Ctrl-D" in err
    finally:
        process.kill()
        process.wait()


def test_closed_pipe_ends_quietly():
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run([BUTLER, "chat", "-m", GQA, "-n", "5"], input=b"Hello\n", stdout=write, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write)
    assert result.returncode == FAILED and result.stderr == b""


# ------------------------------------------------------------------------------------------------ commands

def written_out(*turns):
    """The plain template's text of a conversation, from the messages or the file that /save wrote."""
    names = {"user": "User: ", "assistant": "Assistant:", "system": ""}
    return "".join(names[role] + content + "\n" for role, content in turns) + "Assistant:"


def saved(path):
    return [(m["role"], m["content"]) for m in json.loads(path.read_text())["messages"]]


def answer_to(prompt, *args):
    return rows("run", "-m", GQA, "-p", prompt, "-n", "8", *GREEDY, *args)[-1]["text"].lstrip(" \n") + "\n"


def commands(*lines, args=(), **options):
    return chat("".join(line + "\n" for line in lines), "-n", "8", *GREEDY, *args, **options)


def test_commands_are_listed_and_others_refused():
    hello = commands("Hello").stdout
    text = commands("/help").stderr
    for name in ("/help", "/file PATH", "/save PATH", "/load PATH", "/undo", "/regen", "/policy", "/clear", "/exit"):
        assert name in text
    for line in ("/nosuch", "/", "/helpme", "/Exit", "/ help"):
        result = commands(line, "Hello")
        assert result.stdout == hello and "unknown command" in result.stderr and "/help" in result.stderr, line
    for line in ("/file", "/save ", "/exit now", "/undo 2"):
        assert "usage: " + line.split()[0] in commands(line).stderr
    assert commands(" /nosuch").stdout == answer_to(written_out(("user", " /nosuch")))
    assert commands("Hello", "/exit", "Again").stdout == hello


def test_documents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("It was the best of times.")
    first = answer_to(written_out(("user", "It was the best of times.\n\n(end of a)\n\nWhat?")))
    assert commands("What?", args=["-f", "a"]).stdout == first
    assert commands("/file a", "What?").stdout == first
    assert commands("/file a", "/clear", "Hello").stdout == commands("Hello").stdout
    result = commands("/file absent", "Hello")
    assert "absent" in result.stderr and result.stdout == commands("Hello").stdout
    refuses(FAILED, "chat", "-m", GQA, "-f", "absent", input="Hello\n", says=["absent"])
    refuses(USAGE, "chat", "-m", GQA, "-f", "-", input="Hello\n", says=["-f -"])


def test_save_and_load(tmp_path):
    path = tmp_path / "c.json"
    hello = commands("Hello", f"/save {path}", args=["--system-prompt", "Be kind."]).stdout
    messages = saved(path)
    assert messages[:2] == [("system", "Be kind."), ("user", "Hello")] and messages[2][1].lstrip(" \n") + "\n" == hello
    again = answer_to(written_out(*messages, ("user", "Again")))
    assert commands(f"/load {path}", "Again").stdout == again
    assert commands("Other", f"/load {path} ", "Again").stdout == commands("Other").stdout + again
    for text, word in (("{", "line 1"), ("[]", "messages"), ('{"messages": [{"role": "user"}]}', "message 0"),
                       ('{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}', "message 1")):
        path.write_text(text)
        result = commands("Hello", f"/load {path}", f"/save {tmp_path / 'after'}")
        assert word in result.stderr and len(saved(tmp_path / "after")) == 2, text  # the conversation is as it was
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}')
    template = tmp_path / "t"
    template.write_text("{% for m in messages %}{% if loop.index0 % 2 != (m.role == 'assistant') | int %}{{ raise_exception('roles') }}{% endif %}"
                        "{{ m.content }}{% endfor %}")
    result = commands("Hello", f"/load {path}", f"/save {tmp_path / 'after'}", args=["--chat-template", template])
    assert "roles" in result.stderr and len(saved(tmp_path / "after")) == 2
    assert "no/c" in commands(f"/save {tmp_path / 'no' / 'c'}").stderr


@pytest.mark.parametrize("policy", ["full", "h2o:budget=40", "quest:budget=32,dense=0"])
def test_undo_and_regen(policy, tmp_path):
    args, path = ["--kv", policy], tmp_path / "c.json"
    hello = commands("Hello", args=args).stdout
    again = commands("Again", args=args).stdout
    assert commands("Hello", "/undo", "Again", args=args).stdout == hello + again
    assert commands("Hello", "/regen", "/regen", args=args).stdout == 3 * hello
    assert commands("Hello", "Again", "/undo", f"/save {path}", args=args).stdout == commands("Hello", "Again", args=args).stdout
    assert [role for role, _ in saved(path)] == ["user", "assistant"]
    assert "no turn" in commands("/undo").stderr and "no turn" in commands("/regen").stderr
    kind = ["--system-prompt", "Be kind."]
    assert commands("Hello", "/undo", "Again", args=kind).stdout == commands("Hello", args=kind).stdout + commands("Again", args=kind).stdout


def test_a_policy_that_cannot_begin_changes_nothing(tmp_path):
    """A device or --kv-ram refuses it only when a session is made: the conversation goes on."""
    result = butler("chat", "-m", GQA, "--no-cache", "--kv-ram", "16M", "--temp", "0", "-n", "4",
                    input="Hello\n/policy quest:bounds=deviation,prompt=64\n/policy\nAgain\n/save out.json\n", cwd=tmp_path)
    assert "reads prompts densely" in result.stderr and "the policy is full" in result.stderr
    assert [m["role"] for m in json.loads((tmp_path / "out.json").read_text())["messages"]] == ["user", "assistant"] * 2


def test_undo_keeps_what_was_loaded(tmp_path):
    messages = [{"role": "system", "content": "Loaded."}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "in.json").write_text(json.dumps({"messages": messages}))
    butler("chat", "-m", GQA, "--no-cache", "--temp", "0", "-n", "2", input="/load in.json\n/undo\nNew\n/save out.json\n", cwd=tmp_path)
    saved = json.loads((tmp_path / "out.json").read_text())["messages"]
    assert saved[0] == messages[0] and [m["role"] for m in saved[1:]] == ["user", "assistant"]


def test_files_that_may_have_no_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    said = butler("chat", "-m", GQA, "--no-cache", "-n", "1", input="/file -\n/load pipe\n/file pipe\nHello\n", cwd=tmp_path).stderr
    assert said.count("no regular file") == 3


def test_forgotten_documents_are_in_no_receipt(tmp_path):
    (tmp_path / "a.txt").write_text("The dog ran home.\n")
    said = butler("chat", "-m", GQA, "--no-cache", "--temp", "0", "-n", "4", "-f", "a.txt", input="Who?\n/clear\nWho?\n", cwd=tmp_path).stderr
    assert said.count("most attention:") == 1


def test_policy_changes(tmp_path):
    path = tmp_path / "c.json"
    hello = commands("Hello", f"/save {path}").stdout
    h2o = "h2o:budget=30"
    result = commands("Hello", f"/policy {h2o}", "Again")
    assert result.stdout == hello + answer_to(written_out(*saved(path), ("user", "Again")), "--kv", h2o)
    result = commands("/policy nosuch", "/policy", "Hello")
    assert "nosuch" in result.stderr and "policy is full" in result.stderr and result.stdout == hello


# ------------------------------------------------------------------------------------------------ terminals

class Terminal:
    """chat on a terminal of 80 columns."""

    def __init__(self, *args):
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}
            os.execve(BUTLER, [BUTLER, "chat", "-m", GQA, *GREEDY, *map(str, args)], environment)

    def __enter__(self):
        if b"\x1b[?2004h" not in self.wait_for(b"> "):
            self.__exit__()
            pytest.skip("butler is built without libedit")
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.pid = 0

    def wait_for(self, text):
        """Reads until it has shown this text after what was waited for before."""
        end = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 1)[0]:
                self.seen += os.read(self.fd, 65536)
        before, _, self.seen = self.seen.partition(text)
        return before

    def wait_for_editor(self):
        """The editor takes keys when the terminal no longer makes lines itself."""
        end = time.monotonic() + 60
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            assert time.monotonic() < end

    def type(self, keys, shows=b"\x1b[?2004h> "):
        self.wait_for_editor()
        return self.send(keys, shows)

    def send(self, keys, shows=b"\x1b[?2004h> "):
        os.write(self.fd, keys)
        return self.wait_for(shows)

    def messages(self, path):
        path.unlink(missing_ok=True)
        self.type(b"/save %s\r" % str(path).encode(), b"messages")
        self.wait_for(b"> ")
        return saved(path)


def test_lines_are_edited(tmp_path):
    with Terminal("-n", "4") as terminal:
        terminal.type(b"Hexo\x02\x7fll\x05 \xc3\xa9t\xc3\xa9\x7f\r")  # back, delete, to the end, an accent deleted
        terminal.type(b"\x1b[A!\r")  # the line before
        users = [content for role, content in terminal.messages(tmp_path / "c") if role == "user"]
        assert users == ["Hello \xe9t", "Hello \xe9t!"]
        terminal.type(b"\x04", b"\r\n")
        pid, terminal.pid = terminal.pid, 0
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == DONE


def test_a_paste_is_one_turn(tmp_path):
    text = "\n".join(f"line {i} \u65e5" for i in range(600))
    with Terminal("-n", "4", "-c", "20000") as terminal:
        paste = b"\x1b[200~" + text.encode().replace(b"\n", b"\r") + b"\x1b[201~"
        terminal.wait_for_editor()
        for i in range(0, len(paste), 1000):  # a terminal holds 4096 bytes
            os.write(terminal.fd, paste[i:i + 1000])
            while select.select([terminal.fd], [], [], 0.01)[0]:
                terminal.seen += os.read(terminal.fd, 65536)
        terminal.wait_for(b"line 599")
        terminal.type(b" and typed\r")
        terminal.type(b"\x1b[200~/exit\nis text\x1b[201~\r")
        users = [content for role, content in terminal.messages(tmp_path / "c") if role == "user"]
        assert users == [text + " and typed", "/exit\nis text"]


def test_ctrl_c_at_any_moment(tmp_path):
    (tmp_path / "long").write_text("x" * 200000)
    with Terminal("-n", "-1", "-c", "1000000", "-t", "1", "--block", "16") as terminal:
        terminal.type(b"dropped\x03", b"Ctrl-D")
        terminal.wait_for(b"> ")
        terminal.type(b"Hello\r", b"\x1b[K")  # the prompt is read
        while len(terminal.seen) < 10:
            terminal.seen += os.read(terminal.fd, 4096)
        terminal.send(b"\x03")
        first = terminal.messages(tmp_path / "c")
        assert [role for role, _ in first] == ["user", "assistant"] and first[0][1] == "Hello" and first[1][1]
        terminal.type(b"/file %s\r" % str(tmp_path / "long").encode())
        terminal.type(b"Again\r", b"prompt:")
        terminal.send(b"\x03", b"forgotten")
        terminal.wait_for(b"> ")
        assert terminal.messages(tmp_path / "c") == first
        terminal.type(b"More\r", b"\x1b[K")
        while len(terminal.seen) < 10:
            terminal.seen += os.read(terminal.fd, 4096)
        terminal.send(b"\x03")
        assert [content for role, content in terminal.messages(tmp_path / "c") if role == "user"] == ["Hello", "More"]
