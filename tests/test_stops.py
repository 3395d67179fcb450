"""--stop: an answer ends before any of these texts, however tokens cut them, in run, chat, ask and serve."""
import random

import pytest

from cli import GQA, ROOT, USAGE, butler, refuses, rows
from test_serve import Server, pytestmark as needs_server

STORIES = str(ROOT / "models" / "butler-default.gguf")  # its answers are words
PROMPT, GREEDY = "It was the best of times", ["--temp", "0", "-n", "40"]


@pytest.fixture(scope="module")
def whole():
    row = rows("run", "-m", GQA, "-p", PROMPT, *GREEDY)[-1]
    assert row["stats"]["end"] == "-n reached"
    return row["text"]


def before(text, *stops):
    return text[:min([at for stop in stops if (at := text.find(stop)) >= 0], default=len(text))]


def run(*stops, **options):
    words = [word for stop in stops for word in ("--stop", stop)]
    return butler("run", "-m", GQA, "-p", PROMPT, *GREEDY, *words, **options)


def test_any_part_of_the_text(whole):
    """What is printed is the text before the first of them, with a newline; beginnings of stop texts that go on otherwise are shown."""
    rng = random.Random(3)
    for _ in range(25):
        stops = []
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(whole))
            stops.append(whole[at:at + rng.randint(1, 9)] + rng.choice(["", "", "\x01"]))
        wanted = before(whole, *stops)
        assert run(*stops).stdout == wanted + ("\n" if wanted and not wanted.endswith("\n") else ""), stops
        row = rows("run", "-m", GQA, "-p", PROMPT, *GREEDY, *(word for stop in stops for word in ("--stop", stop)))[-1]
        assert row["text"] == wanted and row["stats"]["end"] == ("--stop" if wanted != whole else "-n reached")


def test_with_drafts_and_a_saved_session(whole, tmp_path):
    stop = whole[len(whole) // 2:][:4]
    assert run(stop).stdout == run(stop, "zzz").stdout == butler("run", "-m", GQA, "-p", PROMPT, *GREEDY, "--stop", stop, "--lossless", "--kv", "fier:budget=16,dense=0",
                                                                 "--save-session", tmp_path / "s").stdout
    butler("run", "--load-session", tmp_path / "s", "-m", GQA, "-n", "2")


def test_a_conversation_goes_on_without_it():
    """What stands behind the stop text is in no later prompt."""
    args = ["chat", "-m", STORIES, "-n", "24", "--temp", "0"]
    answer = butler(*args, input="Hello\n").stdout
    stop = answer[len(answer) // 2:][:3]
    first, both = before(answer, stop), butler(*args, "--stop", stop, input="Hello\nAgain\n").stdout
    assert both.startswith(first + "\n")
    second = both[len(first) + 1:]
    prompt = f"User: Hello\nAssistant: {first}\nUser: Again\nAssistant:"
    text = rows("run", "-m", STORIES, "-p", prompt, "-n", "24", "--temp", "0", "--stop", stop)[-1]["text"]
    assert second == before(text, "\nUser:").lstrip(" \n") + "\n" and stop not in second  # the template's own end of a turn


@needs_server
def test_of_all_requests(whole):
    a, b = whole[len(whole) // 2:][:4], whole[len(whole) // 4:][:4]
    server = Server("--stop", a)
    for more, stops in (({}, [a]), ({"stop": [b]}, [a, b]), ({"stop": "zzz"}, [a])):
        answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, **more})["choices"][0]
        assert answer["text"] == before(whole, *stops) and answer["finish_reason"] == "stop"
    assert server.stop() == 0
    refuses(USAGE, "serve", "-m", GQA, *(["--stop", "x"] * 9), says=["--stop", "9 texts"])


def test_empty_ones():
    refuses(USAGE, "run", "-m", GQA, "-p", PROMPT, "--stop", "", says=["--stop", "empty"])
