"""What the server tells of itself: /metrics in Prometheus's format, audits of recall and mass, /kv/trace, the dashboard's queries."""
import json
import re
import time

import pytest

from cli import PROMPT, ROOT
from test_serve import CASES, Server, completion, occupied, pytestmark, run_text  # noqa: F401  pytestmark: without libevent all are skipped

LONG = PROMPT * 6
NAMES = ["butler:time_to_first_token_seconds", "butler:time_between_tokens_seconds", "llamacpp:requests_deferred", "butler:kv_bytes", "butler:kv_reserved_bytes",
         "butler:prefix_lookups_total", "butler:prefix_hits_total", "butler:kv_read_bytes_total", "butler:metric_read_bytes_total",
         "butler:dense_read_bytes_total", "butler:policy_read_bytes_total", "butler:policy_dense_bytes_total", "butler:audit_recall",
         "butler:audit_mass", "butler:audit_seconds_total", "butler:http_answers_total", "butler:queue_seconds", "butler:kv_limit_bytes",
         "butler:policy_jobs_total", "butler:policy_prompt_tokens_total", "butler:policy_prompt_tokens_cached_total"]


@pytest.fixture(scope="module")
def server():
    s = Server("--audit", 2)
    s.post("/v1/completions", {**completion(LONG, 9, "tinyserve:budget=32"), "ignore_eos": True})  # whose audits have something to compare
    yield s
    assert s.stop() == 0


def metrics_text(server):
    status, headers, text = server.request("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return text.decode()


def series(server):
    """{name: {labels: value}} by the text format's grammar: every series has its type in front of it, and no family comes twice."""
    out, types = {}, {}
    for line in metrics_text(server).splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
            continue
        name, labels, value = re.fullmatch(r'([a-z_:]+)(\{(?:[a-z]+="[^"\n]*",?)+\})? (\S+)', line).groups()
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert list(types)[-1] in (name, family)
        found = out.setdefault(name, {})
        key = tuple(sorted(re.findall(r'([a-z]+)="([^"]*)"', labels or "")))
        assert key not in found
        found[key] = float(value)
    return out, types


def test_the_text_format(server):
    server.post("/v1/completions", completion(LONG, 5, "quest:budget=32"))
    found, types = series(server)
    assert [name for name in NAMES if name not in types] == []
    for name in [name for name, kind in types.items() if kind == "histogram"]:
        for labels, count in found.get(name + "_count", {}).items():
            buckets = [(dict(key)["le"], value) for key, value in found[name + "_bucket"].items() if set(labels) <= set(key)]
            values = [value for _, value in buckets]
            assert buckets[-1] == ("+Inf", count) and values == sorted(values) and len(values) == 14
            assert labels in found[name + "_sum"]
    assert all(kind != "counter" or name.endswith("_total") for name, kind in types.items())
    assert found["butler:time_to_first_token_seconds_count"][()] >= 1 and found["butler:time_between_tokens_seconds_count"][()] >= 4


def test_prometheus_reads_it(server):
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(metrics_text(server))}
    assert {re.sub("_total$", "", name) for name in NAMES} <= set(families)
    assert families["butler:audit_recall"].type == "histogram"


def test_audits_change_no_answer(server):
    """The cases that are tested everywhere: their texts are those of `butler run`, which audits nothing."""
    for case in CASES:
        assert server.post("/v1/completions", completion(*case))["choices"][0]["text"] == run_text(*case)


def of_policy(server, policy):
    """Of its audits: number, mean recall, mean mass, seconds."""
    found, _ = series(server)
    key = (("policy", policy),)
    n = found["butler:audit_recall_count"][key]
    assert found["butler:audit_mass_count"][key] == n
    return n, *(found[f"butler:audit_{name}_sum"][key] / max(n, 1) for name in ("recall", "mass")), found["butler:audit_seconds_total"][key]


def is_unmeasured(server, policy):
    """There is no series that says 0 of what no audit has seen."""
    found, _ = series(server)
    assert (("policy", policy),) in found["butler:policy_jobs_total"]
    return not any(("policy", policy) in key for name in found if "audit" in name for key in found[name])


def test_audits_find_recall_and_mass():
    s = Server("--audit", 3)
    best, worst = "oracle:budget=16,share=query", "random:budget=16"
    for policy in (best, worst, "full", "h2o:budget=24"):
        s.post("/v1/completions", {**completion(LONG, 31, policy), "ignore_eos": True})  # 30 steps
    n, recall, mass, seconds = of_policy(s, best)
    assert (n, recall) == (10, 1) and 0 < mass < 1 and seconds > 0
    n, low, less, _ = of_policy(s, worst)
    assert n == 10 and 0 < low < 0.5 and less < mass
    for policy in ("full", "h2o:budget=24"):  # read everything, or what they dropped cannot be compared
        assert is_unmeasured(s, policy)
    assert s.stop() == 0


def test_without_audits():
    s = Server()
    s.post("/v1/completions", {**completion(LONG, 9, "fier:budget=20"), "ignore_eos": True})
    assert is_unmeasured(s, "fier:budget=20") and "audit" not in metrics_text(s)
    assert s.get("/kv/trace")["traces"][0]["recall"] == [None] * 8
    assert s.stop() == 0


def test_no_cache_keeps_nothing():
    s = Server("--no-cache")
    body = {**completion(LONG, 3), "echo": True, "logprobs": 1}
    first, second = (s.post("/v1/completions", body) for _ in range(2))
    assert first["choices"] == second["choices"] and second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert s.metric("butler:prefix_lookups_total") == s.metric("butler:prefix_bytes") == 0
    assert s.stop() == 0


def test_policies_are_counted_up_to_a_bound():
    s = Server()
    for budget in range(40, 80):
        s.post("/v1/completions", completion(PROMPT, 2, f"quest:budget={budget}"))
    found, _ = series(s)
    policies = {key[0][1] for key in found["butler:policy_dense_bytes_total"]}
    assert len(policies) == 32 and "other" in policies
    assert len(s.get("/kv/trace")["traces"]) == 32
    assert s.stop() == 0


# ------------------------------------------------------------------------------------------------------------ trace

def test_trace_adds_up(server):
    body = {**completion(LONG, 40, "tinyserve:budget=48", 1, 3), "ignore_eos": True}
    answer = server.post("/completion", {**body, "n_predict": 40})
    trace, = server.get(f"/kv/trace?id={answer['id_slot']}")["traces"]
    steps = trace["n_steps"]
    assert steps == 39 and not trace["running"] and trace["policy"] == "tinyserve:budget=48" and trace["choice"] == 0
    assert trace["n_tokens"] == [trace["n_prompt_tokens"] + 1 + i for i in range(steps)]
    lists = ["n_tokens", "read_share", "kv_bytes", "metric_bytes", "dense_bytes", "reuse", "recall", "mass"]
    assert all(len(trace[name]) == steps for name in lists)
    kv = answer["kv"]
    for name, total in [("kv_bytes", "bytes_read"), ("metric_bytes", "metric_bytes_read"), ("dense_bytes", "dense_bytes")]:
        assert sum(trace[name]) == kv[total] > 0
    assert trace["read_share"] == pytest.approx([a / b for a, b in zip(trace["kv_bytes"], trace["dense_bytes"])]) and max(trace["read_share"]) < 1
    assert min(trace["reuse"][1:]) > 0.3 and max(trace["reuse"]) <= 1
    audited = [r for r in trace["recall"] if r is not None]
    assert 19 <= len(audited) <= 20 and all(0 < r <= 1 for r in audited)
    assert [m is None for m in trace["mass"]] == [r is None for r in trace["recall"]]
    last, = server.get(f"/kv/trace?steps=5&id={trace['id_slot']}")["traces"]
    assert all(last[name] == trace[name][-5:] for name in lists) and last["n_steps"] == steps


def test_trace_of_choices_and_its_bound():
    s = Server("-c", 640)
    s.post("/v1/completions", {**completion(PROMPT, 300, "quest:budget=32", 1), "ignore_eos": True, "n": 3})
    answer = s.get("/kv/trace")
    assert answer["kept_steps"] == 256 and sorted(t["choice"] for t in answer["traces"]) == [0, 1, 2]
    for trace in answer["traces"]:
        n = trace["n_prompt_tokens"] + 299
        assert trace["n_steps"] == 299 and trace["n_tokens"] == list(range(n - 255, n + 1))
    assert s.get("/kv/trace?id=12345")["traces"] == []
    for query in ("id=", "id=x", "id=-1", "id=1.5", "id=99999999999", "steps=257", "id=1&steps=5x"):
        status, _, text = s.request("GET", "/kv/trace?" + query)
        assert status == 400 and f"'{query.rpartition('=')[0].rpartition('&')[2]}'" in json.loads(text)["error"]["message"]
    assert s.stop() == 0


# -------------------------------------------------------------------------------------------------------- dashboard

def test_dashboard_names_what_exists(server):
    server.post("/v1/completions", completion(LONG, 5, "quest:budget=32"))  # what is counted by policy has a series then
    found, _ = series(server)
    board = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    for panel in panels:
        assert panel["title"] and panel["targets"]
        for target in panel["targets"]:
            named = re.findall(r"\b(?:butler|llamacpp):\w+", target["expr"])
            assert named, panel["title"]
            for name in named:
                assert name in found, f"{panel['title']}: there is no {name}"
            labels = re.findall(r"by \(([\w, ]+)\)", target["expr"])
            for label in ", ".join(labels).split(", ") if labels else []:
                assert any(label in dict(key) for key in found[named[0]]), f"{panel['title']}: {named[0]} has no label {label}"


# --------------------------------------------------------------------------------------------- endpoints, policies, queue

def test_answers_are_counted_by_endpoint_and_status():
    s = Server("--api-key", "k", "--parallel", 1, "--queue", 0)
    key = {"X-Api-Key": "k"}
    for path, headers, n in [("/health", {}, 2), ("/slots", {}, 1), ("/slots", key, 3), ("/none", key, 1), ("/also/none?x", key, 1),
                             ("/v1/models/x", {}, 1)]:
        for _ in range(n):
            s.request("GET", path, None, headers)
    s.request("POST", "/v1/completions", completion(PROMPT, 1), key)
    s.request("POST", "/v1/completions", "{", key)
    with occupied(s, "X-Api-Key: k\r\n"):
        s.request("POST", "/v1/completions", completion(PROMPT, 1), key)
    s.raw(b"nonsense\r\n\r\n")
    while b'status="499"' not in s.request("GET", "/metrics", None, key)[2]:  # the server sees it a moment later
        time.sleep(0.01)
    text = s.request("GET", "/metrics", None, key)[2].decode()
    found = dict(re.findall(r'^butler:http_answers_total\{(.*?)\} (\d+)$', text, re.M))
    found.pop('endpoint="/metrics",status="200"', None)  # of the loop
    wanted = {("/health", 200): 2, ("/slots", 401): 1, ("/slots", 200): 3, ("other", 404): 2, ("/v1/models/", 404): 1, ("other", 400): 1,
              ("/v1/completions", 200): 1, ("/v1/completions", 429): 1, ("/v1/completions", 400): 1, ("/v1/completions", 499): 1}
    assert {f'endpoint="{path}",status="{status}"': str(n) for (path, status), n in wanted.items()} == found
    assert s.stop() == 0


def test_policies_have_their_jobs_and_hits():
    s = Server("--kv-ram", "64M")
    for _ in range(3):
        s.post("/v1/completions", completion(LONG, 2, "quest:budget=32"))
    n = s.post("/v1/completions", completion(LONG, 2, "h2o:budget=24"))["usage"]["prompt_tokens"]  # which shares nothing
    found, _ = series(s)
    of = {name: found[f"butler:policy_{name}_total"] for name in ("jobs", "prompt_tokens", "prompt_tokens_cached")}
    quest, h2o = (("policy", "quest:budget=32"),), (("policy", "h2o:budget=24"),)
    assert of["jobs"] == {quest: 3, h2o: 1} and of["prompt_tokens"] == {quest: 3 * n, h2o: n}
    assert of["prompt_tokens_cached"] == {quest: 2 * (n - 1), h2o: 0}
    assert found["butler:kv_limit_bytes"][()] + found["butler:prefix_limit_bytes"][()] == 64 << 20
    assert found["butler:queue_seconds_count"][()] == 4 and found["butler:queue_seconds_sum"][()] < 4
    assert s.stop() == 0
