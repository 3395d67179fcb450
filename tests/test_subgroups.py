"""share=2, share=3, ...: subgroups of the query heads of a KV head read what the transcription in policies_reference.py says."""
import numpy as np
import pytest

from cli import MODELS
from gguf_file import U32, Gguf
from predictor_reference import fingerprint_of, write_random
from test_policies import best_isa, check, check_predicted, record, recorder  # noqa: F401

# On KV heads with five query heads: (3, 2), (2, 2, 1) and (4, 1).
SUBGROUPS = ["oracle:budget=20,share=3", "oracle:mass=0.8,share=2,group=mean,sinks=2,recent=3", "quest:budget=0.3,dense=0,page=4,share=2,sinks=6,recent=6",
             "tinyserve:budget=64,share=3", "pagestats:budget=64,share=4,group=mean", "fier:budget=48,dense=0,share=3,every=4,levels=means",
             "fier+vatp:budget=48,dense=0,share=2,page=5", "random:share=2,budget=32,group=mean", "h2o:method=retrieve,budget=40,recent=8,share=3",
             "knorm+vatp:method=retrieve,budget=40,share=2"]


@pytest.fixture(scope="session")
def five_heads(tmp_path_factory):
    """A model with five query heads to each of two KV heads: the committed one has two."""
    path, model = tmp_path_factory.mktemp("five") / "five.gguf", Gguf(MODELS / "llama-gqa.gguf")
    random = np.random.default_rng(3)
    for name, (dims, kind, data) in list(model.tensors.items()):
        if name.endswith(("attn_q.weight", "attn_output.weight")):
            spread = np.frombuffer(data, np.float32).std()
            dims = [dims[0], 160] if "attn_q" in name else [160, dims[1]]
            model.put_tensor(name, dims, random.normal(0, spread, dims[0] * dims[1]))
    model.put("llama.attention.head_count", U32, 10)
    model.put("llama.attention.key_length", U32, 16)
    model.put("llama.attention.value_length", U32, 16)
    model.write(path)
    return path


@pytest.mark.parametrize("policy", SUBGROUPS)
def test_subgroups_choose_what_the_definition_says(recorder, five_heads, tmp_path, policy):
    schedule, threads = "90p,40d,40p,30d", "1" if "fier" in policy else "3"
    check(record(recorder, tmp_path, five_heads, policy, schedule, "f16", best_isa(), threads, 64), policy, schedule)


@pytest.mark.parametrize("policy,per_query_head", [("tokenbutler2:budget=30,on_top=0,sinks=2,recent=7,share=2", False),
                                                   ("tokenbutler:budget=0.3,share=3,group=mean", False), ("tokenbutler:budget=40,share=2", True)])
def test_subgroups_of_predicted_queries(recorder, five_heads, tmp_path, policy, per_query_head):
    predictor, schedule = tmp_path / "predictor.gguf", "60p,40d"
    write_random(predictor, five_heads, fingerprint_of(five_heads, tmp_path), 2 if "butler2" in policy else 1, per_query_head, stride=1)
    recording = record(recorder, tmp_path, five_heads, policy, schedule, "f16", best_isa(), "2", 64, predictor=predictor)
    check_predicted(recording, predictor, policy, schedule, "f16")
