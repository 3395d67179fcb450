"""Plug-ins in shared objects: metrics (--plugin) and step plug-ins (--step), as users compile and load them."""
import json
import re
import subprocess

import pytest

from cli import FAILED, GQA, PROMPT, ROOT, SMOLLM2, USAGE, butler, refuses, rows
from test_serve import Server, completion, run_text

PLAIN = ("run", "-m", GQA, "-p", PROMPT * 3, "-n", "40", "--temp", "0", "-t", 1)


def compile_file(source, out):
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", str(source), "-lm", "-o", str(out)], check=True)
    return out


def test_plug_in(tmp_path):
    plugin = tmp_path / "value_norm.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", f"-I{ROOT}/include", str(ROOT / "examples/plugin.c"), "-o", str(plugin), "-lm"], check=True)
    assert "value_norm" in [row["policy"] for row in rows("policies", "-m", GQA, "--plugin", plugin)]
    *_, last = rows("run", "-m", GQA, "-p", PROMPT, "-n", "20", "--plugin", plugin, "--kv", "value_norm:budget=8")
    assert last["stats"]["kv_read"] < 1.2 and last["stats"]["kv_bytes"] < last["stats"]["full_kv_bytes"]
    refuses(USAGE, "run", "-m", GQA, "-p", PROMPT, "--kv", "value_norm:budget=8", says=["value_norm"])
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--plugin", tmp_path / "absent.so", says=["absent.so"])
    refuses(FAILED, "run", "-m", GQA, "-p", PROMPT, "--plugin", GQA, says=["llama-gqa.gguf"])


# What butler.h of 0.1 declared: 112 bytes, the name first and no ABI number.
METRIC_OF_0_1 = """
#include <stdbool.h>
#include <stddef.h>
struct butler_metric {
    const char *name, *summary;
    int scale;
    bool page_scores, query_free, reads_keys;
    const void *params;
    void (*record)(void);
    int (*attention_window)(void);
    void (*append)(void), (*observe)(void), (*score)(void);
    unsigned long (*score_bytes)(void), (*observe_bytes)(void);
    void (*move)(void);
    int predictor;
    bool earlier_layers;
    void (*score_mean)(void);
};
_Static_assert(sizeof(struct butler_metric) == 112, "");
static void score(void) { }
static const struct butler_metric early = {.name = "early", .summary = "of 0.1", .scale = 1, .query_free = true, .score = score};
const struct butler_metric *butler_plugin_metric(void) { return &early; }
"""


def test_plug_in_of_another_version(tmp_path):
    compile_plugin = ["cc", "-shared", "-fPIC", "-O1", f"-I{ROOT}/include", "-lm", "-o"]
    source = (ROOT / "examples/plugin.c").read_text()
    sources = {"early": METRIC_OF_0_1, "later": source.replace(".abi = BUTLER_METRIC_ABI", ".abi = BUTLER_METRIC_ABI + 1"),
               "none": source.replace(".abi = BUTLER_METRIC_ABI,", "")}
    for name, text in sources.items():
        (tmp_path / f"{name}.c").write_text(text)
        plugin = tmp_path / f"{name}.so"
        subprocess.run([*compile_plugin, str(plugin), str(tmp_path / f"{name}.c")], check=True)
        refuses(FAILED, "policies", "-m", GQA, "--plugin", plugin, says=[plugin, "ABI", "build it with this version's butler.h"])


# ----------------------------------------------------------------------------------------------- step plug-ins

@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The examples, compiled: {name: (flag, file)...}."""
    folder = tmp_path_factory.mktemp("steps")
    return {path.stem: ("--plugin", compile_file(path, folder / f"{path.stem}.so")) for path in sorted((ROOT / "examples").glob("step_*.c"))}


def run(steps, name, settings="", *flags):
    return rows(*PLAIN, *steps[name], "--step", name + settings, *flags)[-1]


def test_they_are_listed(steps):
    every = [word for flags in steps.values() for word in flags]
    listed = {row["step"]: row for row in rows("policies", "-m", GQA, *every) if "step" in row}
    assert set(listed) == {"step_budget", "step_no_repeat", "step_stop"} and all(row["summary"] for row in listed.values())
    assert listed["step_stop"]["defaults"] == "step_stop:nats=0.1,steps=8,at=-1"
    assert "step_no_repeat:n=3" in butler("policies", "-m", GQA, *every).stdout


def test_stop(steps):
    plain = rows(*PLAIN)[-1]
    for at in (plain["ids"][5], plain["ids"][20]):
        row = run(steps, "step_stop", f":nats=0,at={at}")
        first = plain["ids"].index(at)
        assert row["ids"] == plain["ids"][:first + 1] and row["stats"]["end"] == "policy"
    assert run(steps, "step_stop", ":nats=100,steps=7")["ids"] == plain["ids"][:7]
    assert run(steps, "step_stop", ":nats=0")["ids"] == plain["ids"]


def test_no_repeat(steps):
    """No three tokens twice in prompt and text, and up to the first difference the text is the model's own."""
    prompt = rows("tokenize", "-m", GQA, "-p", PROMPT * 3)[-1]["ids"]
    row = run(steps, "step_no_repeat")
    text, seen = prompt + row["ids"], set()
    for i in range(len(prompt) - 2):
        seen.add(tuple(text[i:i + 3]))
    for i in range(len(prompt) - 2, len(text) - 2):
        assert tuple(text[i:i + 3]) not in seen
        seen.add(tuple(text[i:i + 3]))
    assert len(row["ids"]) == 40


def test_budget(steps):
    """With a threshold that no step, or every step, is below it is a policy of that budget."""
    kv = ("--kv", "fier:budget=20,dense=0")
    large = rows(*PLAIN, "--kv", "fier:budget=40,dense=0")[-1]
    unsure = run(steps, "step_budget", ":small=8,large=40,nats=0", *kv)
    assert unsure["ids"] == large["ids"] and unsure["stats"]["kv_bytes"] == large["stats"]["kv_bytes"]
    sure = run(steps, "step_budget", ":small=8,large=40,nats=100", *kv)
    assert sure["stats"]["kv_bytes"] == rows(*PLAIN, "--kv", "fier:budget=8,dense=0")[-1]["stats"]["kv_bytes"]
    between = [run(steps, "step_budget", f":small=8,large=40,nats={nats}", *kv)["stats"]["kv_bytes"] for nats in (2, 2.5, 3, 3.3)]
    assert between == sorted(between, reverse=True)
    assert any(sure["stats"]["kv_bytes"] < read < unsure["stats"]["kv_bytes"] for read in between)
    assert run(steps, "step_budget")["ids"] == rows(*PLAIN)[-1]["ids"]  # full: it has nothing to change


def test_several_in_order(steps):
    both = rows(*PLAIN, *steps["step_no_repeat"], *steps["step_stop"], "--step", "step_no_repeat", "--step", "step_stop:nats=100,steps=12")[-1]
    assert both["ids"] == run(steps, "step_no_repeat")["ids"][:12]


def test_the_example_of_the_page(tmp_path, steps):
    source = tmp_path / "lines.c"
    source.write_text(re.search(r"<!-- example -->\n```c\n(.*?)```", (ROOT / "docs" / "plugins.md").read_text(), re.S)[1])
    plugin = compile_file(source, tmp_path / "lines.so")
    row = rows(*PLAIN, "--plugin", plugin, "--step", "lines:lines=1")[-1]
    assert row["ids"] == rows(*PLAIN)[-1]["ids"][:len(row["ids"])] and row["text"].count("\n") <= 1


def test_a_metric_and_a_step_in_one_object(tmp_path):
    source = (ROOT / "examples/plugin.c").read_text() + (ROOT / "examples/step_stop.c").read_text().replace("#include <butler_plugin.h>", "")
    (tmp_path / "both.c").write_text(source.replace("params", "step_params").replace(".step_params", ".params"))
    both = compile_file(tmp_path / "both.c", tmp_path / "both.so")
    row = rows(*PLAIN, "--plugin", both, "--kv", "value_norm:budget=16", "--step", "step_stop:nats=100,steps=3")[-1]
    assert len(row["ids"]) == 3 and row["stats"]["policy"].startswith("value_norm")


def test_what_is_refused(steps, tmp_path):
    refuses(USAGE, *PLAIN, "--step", "step_stop", says=["--step", "no step plug-in", "step_stop"])
    refuses(USAGE, *PLAIN, *steps["step_stop"], "--step", "step_stop:steps=0", says=["steps", "from 1"])
    refuses(USAGE, *PLAIN, *steps["step_stop"], "--step", "step_stop", "--kv", "verified", "--lossless", says=["--lossless", "step plug-ins"])
    refuses(USAGE, *PLAIN, *steps["step_stop"], *steps["step_stop"], says=["name is taken"])
    refuses(USAGE, "serve", "-m", GQA, *steps["step_stop"], "--step", "step_stop", "--park", tmp_path, says=["--park", "--step"])
    refuses(USAGE, "serve", "-m", GQA, *steps["step_stop"], "--step", "step_stop", "--kv", "verified", "--lossless", says=["--lossless", "--step"])
    refuses(USAGE, "serve", "-m", GQA, "--step", "nosuch", says=["--step", "nosuch"])
    source = (ROOT / "examples/step_stop.c").read_text()
    for name, text, says in (("later", source.replace(".abi = BUTLER_STEP_ABI", ".abi = BUTLER_STEP_ABI + 1"), "step ABI 2"),
                             ("empty", source.replace("return &plugin;", "return (void)plugin.abi, NULL;"), "returned nothing"),
                             ("neither", "int butler_nothing;", "neither")):
        (tmp_path / f"{name}.c").write_text(text)
        refuses(FAILED, *PLAIN, "--plugin", compile_file(tmp_path / f"{name}.c", tmp_path / f"{name}.so"), says=[f"{name}.so", says])


def test_ask_has_them_and_its_library(steps, tmp_path, monkeypatch):
    """A plug-in may change the policy where documents end; what was read of them is the same, and is read once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(PROMPT * 3)
    question = ("ask", "-m", GQA, "-f", "a.txt", "--temp", "0", "-n", "20", "--kv", "fier:budget=30,dense=0")
    step = (*steps["step_budget"], "--step", "step_budget:small=4,large=8,nats=100")
    without = butler(*question, "--no-cache", "Who?")
    fresh = butler(*question, *step, "--no-cache", "Who?")
    assert fresh.stdout == butler(*question[:-1], "fier:budget=4,dense=0", "--no-cache", "Who?").stdout != without.stdout
    for n_read in (r"[1-9]\d+ tokens read, 0 read before", r"1 tokens read, [1-9]\d+ read before"):
        kept = butler(*question, *step, "--cache", "kept", "Who?")
        assert kept.stdout == fresh.stdout and re.search(n_read, kept.stderr)


def test_every_turn_of_a_chat_has_them(steps):
    limit = (*steps["step_stop"], "--step", "step_stop:nats=100,steps=5")
    turns = butler("chat", "-m", GQA, "--temp", "0", "-n", "5", input="Hello\nHello\n").stdout
    assert butler("chat", "-m", GQA, "--temp", "0", "-n", "30", *limit, input="Hello\nHello\n").stdout == turns


def test_in_the_server(steps):
    """Every request has its own memory of it, also the choices of one; a text that is stopped ends as by the model."""
    case = (PROMPT * 3, 40, "fier:budget=20", 1, 3)
    server = Server(*steps["step_stop"], "--step", "step_stop:nats=100,steps=5", *steps["step_no_repeat"], "--step", "step_no_repeat")
    for _ in range(2):
        answer = server.post("/v1/completions", {**completion(*case), "n": 2})
        for choice in answer["choices"]:
            wanted = run_text(*case[:4], case[4] + choice["index"], *steps["step_stop"], "--step", "step_stop:nats=100,steps=5", *steps["step_no_repeat"],
                              "--step", "step_no_repeat")
            assert choice["text"] == wanted and choice["finish_reason"] == "stop"
    error = server.post("/v1/completions", {**completion(*case), "kv": {"policy": "verified", "lossless": True}}, expect=400)["error"]["message"]
    assert "step plug-ins" in error
    assert server.stop() == 0


@pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")
def test_on_smollm2(steps):
    """A budget that follows the entropy reads less than the large one, more than the small one; no three tokens come twice."""
    story = (ROOT / "models" / "long_text.txt").read_text(encoding="utf-8")[:4000]
    def read(*flags):
        return rows("run", "-m", SMOLLM2, "-p", story, "-n", "48", "--temp", "0", *flags)[-1]
    small, large = (read("--kv", f"fier:budget={n}")["stats"]["kv_bytes"] for n in (32, 512))
    found = read("--kv", "fier:budget=256", *steps["step_budget"], "--step", "step_budget:small=32,large=512,nats=0.5")["stats"]["kv_bytes"]
    assert small < found < large
    ids = read(*steps["step_no_repeat"], "--step", "step_no_repeat")["ids"]
    assert len({tuple(ids[i:i + 3]) for i in range(len(ids) - 2)}) == len(ids) - 2
