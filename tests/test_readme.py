"""What README.md and docs/policies.md say of policies, commands, flags and packages is true."""
import re

from cli import COMMANDS, ROOT, butler, rows

README = (ROOT / "README.md").read_text()


def test_policies_are_those_of_the_command():
    named = [(r["policy"], r["metric"], r["method"]) for r in rows("policies")]
    listed = re.search(r"\*\*Policies\*\* \(metric\)\. Evict: (.*) Retrieve: (.*) Dense: (.*)", (ROOT / "docs" / "policies.md").read_text())
    for method, policies in zip(("evict", "retrieve", "dense"), listed.groups()):
        wanted = [(name, "" if metric == "none" else metric) for name, metric, of in named if of == method]
        assert re.findall(r"`(\w+)`(?: \((\w+)\))?", policies) == wanted
    choices = README.split("## Which policy")[1].split("Keys that most policies take")[0]
    table = re.findall(r"^\| [^`|]+ \| (.*) \|$", choices, re.M)
    chosen = re.findall(r"`(\w+)`", " ".join(table))
    assert len(chosen) >= 6 and set(chosen) <= {name for name, _, _ in named}
    assert len(named) > 20 and "lists all" in README


def test_keys_are_keys():
    keys = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) \| ", README.split("Keys that most policies take")[1].split("##")[0], re.M)
    keys = re.findall(r"`(\w+)`", " ".join(keys))
    assert len(keys) >= 8
    refused = butler("run", "-m", ROOT / "tests/data/models/llama-gqa.gguf", "-p", "a", "--kv", "quest:nosuch=1", expect=2).stderr
    for key in keys:
        assert re.search(rf"\b{key}\b", refused), f"{key} is no key: {refused}"


def test_commands_and_flags_exist():
    helps = {name: butler(name, "--help").stdout for name in COMMANDS}
    for name in COMMANDS:
        assert f"`{name}`" in README
    examples = re.findall(r"^ +(?:\./)?butler (\w+) (.*)$", README, re.M)
    assert len(examples) >= 3
    for name, words in examples:
        for flag in re.findall(r"(?<!\S)-[-a-z]+", words):
            assert re.search(rf"(?<![\w-]){flag}[ ,[\n]", helps[name]), f"butler {name} has no {flag}"
    for flag in re.findall(r"`(?:butler \w+ )?(--?[a-z][-a-z]*)[ `|]", README):
        assert any(re.search(rf"(?<![\w-]){flag}[ ,[\n]", text) for text in helps.values()), f"no command has {flag}"


def test_packages_are_those_of_setup():
    setup = (ROOT / "setup").read_text()
    for package in ("gcc", "make", "pkg-config", "libpcre2", "libxxhash", "libjansson", "libedit", "libevent", "libpoppler-glib", "libxml2", "libarchive", "libcmocka", "python3-pytest", "python3-numpy", "clang",
                    "libclang-rt-dev"):
        assert package in setup and package in README


def test_files_it_names_are_there():
    for name in re.findall(r"(?:examples|include|models|tests|tools)/[\w./-]+\w", README + (ROOT / "CONTRIBUTING.md").read_text()):
        if not name.startswith(("models/", "examples/minimal ")):  # models are data, and may be replaced
            assert (ROOT / name).exists(), name
