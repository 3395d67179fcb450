"""GET /kv/map: which tokens the steps of a text read, and their attention, as the request's trace and audits say it too."""
import json

import pytest

from cli import PROMPT
from test_serve import CASES, Server, completion, pytestmark, run_text  # noqa: F401  pytestmark: without libevent all are skipped

LONG = PROMPT * 6


@pytest.fixture(scope="module")
def server():
    s = Server("--audit", 1)
    yield s
    assert s.stop() == 0


def mapped(body, **kv):
    return {**body, "ignore_eos": True, "kv": {**body["kv"], "map": True, **kv}}


def ask(server, prompt, n, policy, **fields):
    """(id, the map's tokens, the steps of tokens that have one) of a request."""
    usage = server.post("/v1/completions", {**mapped(completion(prompt, n, policy)), **fields})["usage"]
    found = server.get(f"/kv/map?id={usage['kv']['map']}")
    assert (found["n_prompt_tokens"], found["n_tokens"]) == (usage["prompt_tokens"], usage["total_tokens"])
    first = found["n_prompt_tokens"] + 1
    return found["id"], found, [server.get(f"/kv/map?id={found['id']}&token={i}") for i in range(first, found["n_tokens"])]


def test_a_map_changes_no_answer(server):
    for case in CASES:
        body = completion(*case)
        body["kv"]["map"] = True
        assert server.post("/v1/completions", body)["choices"][0]["text"] == run_text(*case)


@pytest.mark.parametrize("policy", ["full", "fier:budget=20,dense=0", "quest:budget=48,dense=0", "random:budget=30,dense=0"])
def test_it_is_what_trace_and_audit_say(server, policy):
    """Tokens read over tokens held are bytes read over dense bytes; attention to what was read is the audit's mass."""
    found_id, found, steps = ask(server, LONG, 12, policy)
    trace, = [t for t in server.get(f"/kv/trace?id={found_id}")["traces"]]
    assert len(steps) == 11 and [step["n_tokens"] for step in steps] == trace["n_tokens"]
    for i, step in enumerate(steps):
        n = step["n_tokens"]
        assert len(step["mass"]) == len(step["readers"]) == n and step["n_heads"] == found["n_layers"] * found["n_kv_heads"]
        assert sum(step["mass"]) == pytest.approx(1, abs=1e-4)
        assert step["read_share"] == pytest.approx(trace["read_share"][i], abs=1e-9)
        assert step["read_share"] == pytest.approx(sum(step["readers"]) / step["n_heads"] / n)
        assert step["mass_read"] == pytest.approx(trace["mass"][i] if trace["mass"][i] is not None else 1, abs=1e-5)
        assert sum(map(sum, step["heads"])) / step["n_heads"] == pytest.approx(step["mass_read"], abs=1e-5)
        assert step["readers"][-1] == step["n_heads"]  # every head reads the newest token
    assert policy != "random:budget=30,dense=0" or max(step["mass_read"] for step in steps) < 0.9


def test_heads_add_up(server):
    """The text is shorter than the 64 tokens that a head keeps the mass of."""
    found_id, found, steps = ask(server, PROMPT[:40], 8, "fier:budget=10")
    step = steps[-1]
    assert step["n_tokens"] <= 64
    mass, readers = [0] * step["n_tokens"], [0] * step["n_tokens"]
    for layer in range(found["n_layers"]):
        whole = server.get(f"/kv/map?id={found_id}&token={step['token']}&layer={layer}")
        heads = [server.get(f"/kv/map?id={found_id}&token={step['token']}&layer={layer}&head={h}") for h in range(found["n_kv_heads"])]
        assert [head["mass_read"] for head in heads] == pytest.approx(step["heads"][layer], abs=1e-6)
        assert all(set(head["readers"]) <= {0, 1} and sum(head["mass"]) == pytest.approx(1, abs=1e-3) for head in heads)
        assert whole["readers"] == [sum(column) for column in zip(*(head["readers"] for head in heads))]
        for i in range(step["n_tokens"]):
            assert whole["mass"][i] == pytest.approx(sum(head["mass"][i] for head in heads) / found["n_kv_heads"], abs=2e-6)
            mass[i] += whole["mass"][i] / found["n_layers"]
            readers[i] += whole["readers"][i]
    assert readers == step["readers"] and mass == pytest.approx(step["mass"], abs=1e-5)


def test_tokens_are_the_text(server):
    """Also where a character has several tokens; choices have maps of their own."""
    prompt = PROMPT + " Jürgen paid €5 "
    body = {**mapped(completion(prompt, 6, "fier:budget=20", 1, 3)), "n": 2}
    answer = server.post("/v1/completions", body)
    for choice in answer["choices"]:
        found = server.get(f"/kv/map?id={answer['usage']['kv']['map']}&choice={choice['index']}")
        text = "".join(found["tokens"])
        assert prompt.strip() in text and text.endswith(choice["text"].rstrip("\ufffd"))
    listed = [m for m in server.get("/kv/map")["maps"] if m["id"] == answer["usage"]["kv"]["map"]]
    assert [m["choice"] for m in listed] == [0, 1] and not any("tokens" in m for m in listed)


def test_evicted_tokens_have_no_attention(server):
    _, found, steps = ask(server, LONG, 10, "streaming:budget=16,sinks=4")
    for step in steps:
        held = [i for i, n in enumerate(step["readers"]) if n]
        assert held[:4] == [0, 1, 2, 3] and len(held) == 16 and step["mass_read"] == pytest.approx(1, abs=1e-5)
        assert all(mass == 0 for i, mass in enumerate(step["mass"]) if i not in held)


def test_streams_and_chats_tell_the_id(server):
    *_, last = server.stream("/v1/completions", **mapped(completion(PROMPT, 3, "fier:budget=20")), stream_options={"include_usage": True})
    assert server.get(f"/kv/map?id={last['usage']['kv']['map']}")["running"] is False
    assert "map" not in server.post("/v1/completions", completion(PROMPT, 3))["usage"]["kv"]


@pytest.mark.parametrize("policy, every", [("fier:budget=20", 1), ("fier:budget=20", 5), ("tova:budget=170", 1)])
def test_parked_texts_go_on(policy, every, tmp_path):
    s = Server("--kv-ram", 640000, "--park", tmp_path)
    import concurrent.futures
    case = (PROMPT, 180, policy, 1, 4)
    body = {**completion(*case), "kv": {"policy": case[2], "map": True, "receipt": every}}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(20):  # requests that come one after the other, by chance, park nothing
            answers = list(pool.map(lambda _: s.post("/v1/completions", body), range(8)))
            assert {a["choices"][0]["text"] for a in answers} == {run_text(*case)}
            if s.metric("butler:parked_total"):
                break
    assert s.metric("butler:parked_total") > 0
    ids = [a["usage"]["kv"]["map"] for a in answers]
    token = s.get(f"/kv/map?id={ids[0]}")["n_tokens"] - 1
    steps = [json.dumps(s.get(f"/kv/map?id={i}&token={token}")) for i in ids]
    assert len(set(steps)) == 1
    receipts = [a["usage"]["kv"]["receipt"] for a in answers]
    assert {r["steps"] for r in receipts} == {(answers[0]["usage"]["completion_tokens"] - 2) // every + 1}
    for receipt in receipts:  # of all steps, before and after it was parked
        for share in ("attention_read", "attention_evicted_at_step"):
            assert receipt[share] == pytest.approx(receipts[0][share], abs=1e-4)
        assert [p["text"] for p in receipt["passages"]] == [p["text"] for p in receipts[0]["passages"]] != []
        assert [p["share"] for p in receipt["passages"]] == pytest.approx([p["share"] for p in receipts[0]["passages"]], abs=1e-4)
    assert s.stop() == 0


@pytest.mark.parametrize("query, status, says", [
    ("id=99999", 404, "there is no map 99999"), ("id=x", 400, "'id'"), ("token=3", 400, "'token' needs 'id'"), ("id=0&head=1", 400, "'head' needs 'layer'"),
    ("id={}&token=0", 404, "one of the answer's"), ("id={}&token=1000000", 404, "one of the answer's"), ("id={}&token={n}", 404, "attends densely"),
    ("id={}&token={m}&layer=99", 404, "layers"), ("id={}&token={m}&layer=0&head=99", 404, "KV heads"), ("id={}&choice=5", 404, "no map"),
    ("id=-1", 400, "'id'"), ("id={}&token=99999999999", 400, "'token'")])
def test_refusals(server, query, status, says):
    found_id, found, _ = ask(server, PROMPT, 3, "full")
    n = found["n_prompt_tokens"]
    got, _, text = server.request("GET", "/kv/map?" + query.replace("{}", str(found_id)).replace("{n}", str(n)).replace("{m}", str(n + 1)))
    assert got == status and says in json.loads(text)["error"]["message"]


@pytest.mark.parametrize("policy", ["full", "fier:budget=20,dense=0", "quest:budget=48,dense=0", "random:budget=30,dense=0"])
def test_a_receipt_is_what_the_trace_says(server, policy):
    """Every step compared: the mean of the audits' mass over the layers that select."""
    usage = server.post("/v1/completions", {**mapped(completion(LONG, 12, policy), receipt=1)})["usage"]["kv"]
    trace, = server.get(f"/kv/trace?id={usage['map']}")["traces"]
    masses = [1 if mass is None else mass for mass in trace["mass"]]
    assert usage["receipt"]["steps"] == len(masses) == 11 and usage["receipt"]["attention_evicted_at_prompt"] == 0
    assert usage["receipt"]["attention_read"] == pytest.approx(sum(masses) / 11, abs=1e-3)


def test_receipts_of_policies_that_evict(server):
    body = {**completion(LONG, 9, "snapkv:budget=24,window=8,dense=0"), "ignore_eos": True}
    assert "receipt" not in server.post("/v1/completions", body)["usage"]["kv"]
    body["kv"]["receipt"] = 4
    one = server.post("/v1/completions", body)["usage"]["kv"]["receipt"]
    assert one["steps"] == 2 and one["attention_read"] == 1 and 0.01 < one["attention_evicted_at_prompt"] < 1
    two = server.post("/v1/completions", {**body, "n": 2})["usage"]["kv"]["receipt"]
    assert two["steps"] == 4 and two["attention_evicted_at_prompt"] == one["attention_evicted_at_prompt"]
    for passages in (one["passages"], two["passages"]):
        shares = [passage["share"] for passage in passages]
        assert 1 <= len(shares) <= 10 and shares == sorted(shares, reverse=True) and shares[-1] >= 0.01 and sum(shares) <= 1.0001
    assert all(passage["text"] in LONG and passage["text"].strip() == passage["text"] for passage in one["passages"])
    for wrong in (-1, "x", 1.5):
        assert "receipt" in server.post("/v1/completions", {**body, "kv": {"receipt": wrong}}, expect=400)["error"]["message"]


def test_lossless_has_none(server):
    error = server.post("/v1/completions", mapped(completion(PROMPT, 3, "verified"), lossless=True), expect=400)["error"]["message"]
    assert "kv.map" in error
    assert "must be true or false" in server.post("/v1/completions", {**completion(PROMPT, 3), "kv": {"map": 1}}, expect=400)["error"]["message"]
