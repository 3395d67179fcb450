#!/usr/bin/env python3
"""A metric of one's own beside FIER: which of the tokens that exact scores would choose do they find, and what do they read for it?

    python3 examples/python/own_metric.py MODEL.gguf TEXT.txt -o own_metric.png

The metric scores a token by the channels in which the query is largest (the first step of SparQ Attention, Ribar et al., arXiv 2312.04985).
A session of each policy reads the same text. In each of the last steps, what it selected is compared with what `oracle` selected at the
same budget, for every layer and query head. (Each session goes on with its own output. `butler eval recall` gives all of them the same
queries and charges for what a metric reads, but takes only metrics in C.) Needs this package (python/README.md); matplotlib for the plot."""
import argparse
from pathlib import Path

import numpy as np

import butler


class FewChannels(butler.Metric):
    name = "few_channels"
    summary = "q.k over the channels in which the query is largest"
    scale = "logit"
    params = [butler.Param("channels", 16, 1, 512, "channels of a key that a score reads")]

    def record(self, shape, params):
        """A key in half precision for each slot."""
        return 1, np.dtype((np.float16, shape.head_dim))

    def append(self, view, first, n):
        view.records(first, n)[:] = view.keys(first, n)

    def score(self, view, q, first, n):
        largest = np.argsort(-np.abs(q).sum(axis=0), kind="stable")[:int(view.params["channels"])]
        return q[:, largest] @ view.records(first, n)[:, largest].T.astype(np.float32)

    def score_bytes(self, shape, params, n_slots):
        return n_slots * min(int(params["channels"]), shape.head_dim) * 2


def compare(engine, ids, n_steps, policies):
    """Recall against the first policy, and the share of the KV bytes that was read, of each of the others."""
    sessions = [engine.session(policy, n_ctx=len(ids)) for policy in policies]
    for session in sessions:
        session.prefill(ids[:-n_steps], logits=None)
        session.reset_stats()
    found = np.zeros((len(policies), 2))  # tokens that the first policy chose too, tokens that it chose
    for token in ids[-n_steps:]:
        engine.run([butler.Span(session, [token], prompt_end=0, logits=None) for session in sessions])
        best, *others = [session.selections() for session in sessions]
        for i, selections in enumerate(others, 1):
            for layer, heads in enumerate(selections):
                for head, chosen in enumerate(heads):
                    found[i] += np.isin(best[layer][head], chosen).sum(), len(best[layer][head])
    return [(recall[0] / recall[1], session.stats().kv_read) for recall, session in zip(found[1:], sessions[1:])]


def plot(curves, title, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, points in curves.items():
        axes.plot([100 * read for _, read in points], [recall for recall, _ in points], marker="o", label=name)
    axes.set_xlabel("bytes read, % of a dense decode's keys and values (scores included)")
    axes.set_ylabel("recall of the oracle's tokens")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    axes.set_title(title)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("-o", "--output", help="a PNG with the curves")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the text that are read (1024)")
    parser.add_argument("--steps", type=int, default=16, help="of them, the last ones that are decoded (16)")
    parser.add_argument("--budgets", default="0.02,0.05,0.1,0.2,0.3", help="shares of the text that a head reads")
    args = parser.parse_args()
    with butler.Model(args.model) as model, butler.Engine(model) as engine:
        engine.register(FewChannels())
        ids = model.tokenize(Path(args.text).read_text(encoding="utf-8"))[:args.length]
        if len(ids) < 2 * args.steps:
            parser.error(f"{args.text} has {len(ids)} tokens; {2 * args.steps} are needed")
        names = {"few_channels, 8": "few_channels:channels=8", "few_channels, 16": "few_channels:channels=16", "fier": "fier:dense=0"}
        curves = {name: [] for name in names}
        print(f"{'policy':20} {'budget':>8} {'recall':>8} {'KV read':>9}")
        for budget in map(float, args.budgets.split(",")):
            policies = [f"{policy}{',' if ':' in policy else ':'}budget={budget:g}" for policy in ("oracle", *names.values())]
            for name, point in zip(names, compare(engine, ids, args.steps, policies)):
                curves[name].append(point)
                print(f"{name:20} {budget:8g} {point[0]:8.3f} {100 * point[1]:7.1f} %", flush=True)
    if args.output:
        plot(curves, f"{Path(args.model).name}, last {args.steps} of {len(ids)} tokens", args.output)


if __name__ == "__main__":
    main()
