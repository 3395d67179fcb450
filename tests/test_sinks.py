"""The model that butler comes with has an attention sink, as large models do and random ones do not: its first token. A policy that drops it
writes a worse text, whatever else it keeps; the ids that other tests compare do not show that."""
from cli import ROOT, rows

MODEL, TEXT = ROOT / "models" / "butler-default.gguf", ROOT / "models" / "long_text.txt"
KEEP = ["streaming", "streaming:sinks=1", "h2o", "h2o+vatp", "scissorhands", "snapkv:rolling=1", "tova", "softprune", "quest", "tinyserve", "pagestats", "fier",
        "tokenbutler", "tokenbutler2", "oracle"]
DROP = ["streaming:sinks=0", "random"]


def test_policies_keep_the_sink():
    words = [word for policy in ["full", *KEEP, *DROP] for word in ("--kv", policy)]
    found = rows("eval", "ppl", "-m", MODEL, "--data", TEXT, "--length", 384, "--limit", 2, "--set", "compare=0", "--budget", 96, *words)
    ppl = [row["value"] for row in found if row["metric"] == "ppl"]
    assert len(ppl) == 1 + len(KEEP) + len(DROP)
    loss = {policy: value / ppl[0] - 1 for policy, value in zip([*KEEP, *DROP], ppl[1:])}
    assert max(loss[policy] for policy in KEEP) < 0.15 < 0.2 < min(loss[policy] for policy in DROP), loss
