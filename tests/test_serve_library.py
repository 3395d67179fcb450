"""A server that keeps prompts in a folder: a restarted one reads only what is new, other keys find nothing."""
import json
import re
import time

import pytest

from cli import GQA, butler
from test_serve import Server

TEXT = " ".join(f"{i}. It was the best of times, it was the worst of times." for i in range(12))
REQUEST = {"max_tokens": 8, "temperature": 0}


def cached(server, prompt, headers={}, **fields):
    """The answer's text and how many prompt tokens were not read for it."""
    status, _, body = server.request("POST", "/v1/completions", {"prompt": prompt, **REQUEST, **fields}, headers)
    answer = json.loads(body)
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def serve(folder, *flags):
    return Server("-c", "1000", "--cache", folder, *flags)


@pytest.mark.parametrize("policy", ["full", "fier:budget=64", "snapkv:budget=64"])
def test_a_restart_reads_nothing_again(policy, tmp_path):
    first = serve(tmp_path)
    text, n, known = cached(first, TEXT, kv={"policy": "full"})
    assert n > 500 and known == 0
    assert first.stop() == 0
    second = serve(tmp_path)
    other = cached(second, TEXT + " Who?", kv={"policy": policy})
    assert other[2] >= n - 32
    fresh = Server("-c", "1000")
    assert cached(fresh, TEXT + " Who?", kv={"policy": policy})[0] == other[0]
    assert cached(second, TEXT, cache_prompt=False)[1:] == (n, 0)
    assert second.stop() == 0 and fresh.stop() == 0


def test_keys_find_their_own_texts_alone(tmp_path):
    keys = ["--api-key", "a", "--api-key", "b"]
    as_key = lambda key: {"Authorization": f"Bearer {key}"}
    first = serve(tmp_path, *keys)
    assert cached(first, TEXT, as_key("a"))[2] == 0
    assert first.stop() == 0
    second = serve(tmp_path, "--api-key", "b", "--api-key", "a")  # in another order
    assert cached(second, TEXT, as_key("b"))[2] == 0
    text, n, known = cached(second, TEXT, as_key("a"))
    assert known == n - 1
    assert cached(second, TEXT, as_key("a"), cache_salt="x")[2] == 0
    assert second.stop() == 0
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert re.search(r"3 texts", butler("library", "info", "--cache", tmp_path).stdout)


def test_pages_on_the_disk(tmp_path):
    """Memory for half of the prompt: the same text, and /metrics and the answer say what came from the disk."""
    kv = {"policy": "quest:budget=64,dense=0"}
    resident, spilled = Server("-c", "700"), Server("-c", "700", "--cache", tmp_path, "--kv-ram", "96K", "--kv-disk", "16M")
    status, _, body = spilled.request("POST", "/v1/completions", {"prompt": TEXT, **REQUEST, "kv": kv})
    answer = json.loads(body)
    assert status == 200 and answer["choices"][0]["text"] == cached(resident, TEXT, kv=kv)[0]
    assert 0 < answer["usage"]["kv"]["pages_from_disk"] <= answer["usage"]["kv"]["pages"] and answer["usage"]["kv"]["disk_wait_ms"] > 0
    assert spilled.metric("butler:kv_pages_fetched_total") == answer["usage"]["kv"]["pages_from_disk"]
    assert 0 < spilled.metric("butler:kv_resident_bytes") <= 96 << 10 and spilled.metric("butler:kv_disk_bytes") > 0
    assert spilled.metric("butler:kv_disk_read_bytes_total") > 0 and spilled.metric("butler:kv_disk_wait_seconds_total") > 0
    assert resident.metric("butler:kv_pages_wanted_total") == resident.metric("butler:kv_resident_bytes") == 0
    assert resident.stop() == 0 and spilled.stop() == 0
    again = serve(tmp_path)
    assert cached(again, TEXT, kv=kv)[2] > 500 and again.metric("butler:library_tokens_total") > 500
    assert again.stop() == 0


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it does not happen")


@pytest.mark.parametrize("policy", ["full", "quest:budget=64,dense=0", "h2o:budget=64"])
def test_answers_are_read_while_nothing_runs(policy, tmp_path):
    """The next turn reads only what is new, after a restart too, and goes on as one that reads all."""
    flags = ("-c", "1000", "--reread-answers", "--cache", tmp_path)
    first, fresh = Server(*flags), Server("-c", "1000")
    ids = json.loads(first.request("POST", "/tokenize", {"content": TEXT, "add_special": True})[2])["tokens"]
    status, _, body = first.request("POST", "/completion", {"prompt": ids, "n_predict": 40, "temperature": 0, "ignore_eos": True, "kv": {"policy": policy}})
    answer = json.loads(body)["tokens"]
    assert status == 200 and len(answer) == 40 and fresh.metric("butler:answer_tokens_reread_total") == 0
    turn = ids + answer + ids[-20:]
    later = {} if policy.startswith("h2o") else {"kv": {"policy": policy}}  # which needs the attention of all queries
    wait_for(lambda: first.metric("butler:answer_tokens_reread_total") >= 40)
    for server in first, Server(*flags):
        text, n, known = cached(server, turn, **later)
        assert n == len(turn) and known == len(ids) + 40
        assert text == cached(fresh, turn, **later)[0]
        assert server.stop() == 0
    assert fresh.stop() == 0


def test_reading_again_ends_where_nothing_more_is_kept():
    """The prefix cache is smaller than the text: what does not fit is not read for ever. Nor is it counted as requests that look there."""
    server = Server("--kv-ram", 130000, "--reread-answers")
    server.post("/completion", {"prompt": TEXT[:121], "n_predict": 120, "temperature": 0, "ignore_eos": True})
    server.wait_idle()
    time.sleep(0.5)
    counted = [server.metric(f"butler:{name}") for name in ("answer_tokens_reread_total", "prefix_lookups_total")]
    time.sleep(0.5)
    assert [server.metric(f"butler:{name}") for name in ("answer_tokens_reread_total", "prefix_lookups_total")] == counted
    assert counted[0] < 300 and counted[1] == 1
    assert server.stop() == 0
