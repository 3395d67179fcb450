#!/usr/bin/env python3
"""lm-evaluation-harness against `butler serve`, through its model classes local-completions and local-chat-completions, and what the prefix
cache saves.

    python tools/compare/serve_lm_eval.py -m models/smollm2.gguf --data ../shared/data/mc --limit 100
    python tools/compare/serve_lm_eval.py -m models/smollm2.gguf --data ../shared/data/mc --limit 100 --shots 5 --time
    python tools/compare/serve_lm_eval.py -m models/smollm2.gguf --data ../shared/data/mc --limit 20 --chat

The harness is not changed: it asks the server for tokens and for scores of prompts (echo, logprobs) as it would any other; only the
questions come from --data. Without --time every log-likelihood is compared with that of `butler eval mc`, which reads the same tokens
without a server: they must be the same numbers, to the last bit. (Python 3.11: sum() of later versions rounds otherwise.) With --time
the tasks run twice, on a server that keeps beginnings of prompts and their scores and on one with --no-cache; answers must be equal,
times are printed. With --chat the questions of arc_easy are asked as chats, answered in up to 32 tokens; every answer must be that of
/completion on the text of /apply-template. --shots puts so many answered questions in front of each, which `butler eval mc` does not do.
Needs lm-eval with its API models: pip install "lm_eval[api]==0.4.13".
"""
import argparse
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import lm_eval
from lm_eval.models.api_models import TemplateAPI

from harness_data import FILES, find_file, log_likelihoods, run_butler, use_files


class Server:
    def __init__(self, butler, model, *flags):
        self.process = subprocess.Popen([butler, "serve", "-m", model, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found.group(1)
                self.used_before = self.used()
                return
        sys.exit("the server does not listen")

    def used(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ends it; the processor's seconds that its answers took."""
        used = self.used() - self.used_before
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return used


def evaluate(url, tasks, args):
    """(what simple_evaluate gives, seconds from its first request for scores to the last answer)"""
    spent = []
    score = TemplateAPI._loglikelihood_tokens

    def timed(self, *positional, **named):
        begin = time.time()
        out = score(self, *positional, **named)
        spent.append(time.time() - begin)
        return out

    TemplateAPI._loglikelihood_tokens = timed
    out = lm_eval.simple_evaluate(
        model="local-completions", tasks=tasks, num_fewshot=args.shots, log_samples=True, bootstrap_iters=0, batch_size=args.batch,
        model_args={"model": "butler", "base_url": url + "/v1/completions", "num_concurrent": args.concurrent, "max_length": args.length + 1})
    TemplateAPI._loglikelihood_tokens = score
    return out, sum(spent)


def compare(tasks, args):
    server = Server(args.butler, args.model, "--kv-type", args.kv_type)
    out, seconds = evaluate(server.url, tasks, args)
    server.stop()
    differ = 0
    for task in tasks:
        theirs, results = log_likelihoods(out, task)
        ours, values = run_butler(args.butler, args.model, args.data, task, args.limit, args.length, "--kv-type", args.kv_type, reads="prompt")
        assert [len(item) for item in ours] == [len(item) for item in theirs], f"{task}: other items"
        pairs = [(a, b) for x, y in zip(ours, theirs) for a, b in zip(x, y)]
        unequal = sum(a != b for a, b in pairs) + sum(values[name] != value for name, value in results.items() if name != "ppl")
        differ += unequal
        print(f"{task}: {len(ours)} items, {len(pairs)} log-likelihoods, {unequal} differ, at most by {max(abs(a - b) for a, b in pairs):.3g};",
              ", ".join(f"{name} {values[name]:.6g} / {value:.6g}" for name, value in results.items()), flush=True)
    print(f"scores took {seconds:.1f} s")
    return differ


def measure(tasks, args):
    """Seconds of each task with the cache and without; the server is started anew for each. Its processor time, which other programs on
    the machine disturb less, is printed too."""
    differ = 0
    for task in tasks:
        seconds, used, scores = [], [], []
        for flags in ([], ["--no-cache"]):
            server = Server(args.butler, args.model, "--kv-type", args.kv_type, *flags)
            out, s = evaluate(server.url, [task], args)
            used.append(server.stop())
            seconds.append(s)
            scores.append(log_likelihoods(out, task)[0])
        differ += scores[0] != scores[1]
        print(f"{task}, {args.shots} shots: {seconds[0]:.1f} s with the cache, {seconds[1]:.1f} s without: {seconds[1] / seconds[0]:.2f} times as fast;",
              f"processor time of the server {used[0]:.1f} s and {used[1]:.1f} s, a factor of {used[1] / used[0]:.2f};", "answers equal" if scores[0] == scores[1] else "ANSWERS DIFFER", flush=True)
    return differ


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def chat(args):
    """A task of free answers, which the harness sends to /v1/chat/completions."""
    path = find_file(args.data, "arc_easy")
    questions = [json.loads(line)["query"] for line in Path(path).read_text(encoding="utf-8").splitlines()[:args.limit]]
    stop = "\n\n"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as rows:
        rows.writelines(json.dumps({"question": question, "answer": ""}) + "\n" for question in questions)
        rows.flush()
        task = {"task": "chat", "dataset_path": "json", "dataset_kwargs": {"data_files": rows.name}, "test_split": "train", "output_type": "generate_until",
                "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}", "metric_list": [{"metric": "exact_match"}],
                "generation_kwargs": {"until": [stop], "max_gen_toks": 32, "temperature": 0, "do_sample": False}}
        server = Server(args.butler, args.model, "--kv-type", args.kv_type)
        out = lm_eval.simple_evaluate(model="local-chat-completions", tasks=[task], apply_chat_template=True, log_samples=True, bootstrap_iters=0,
                                      model_args={"model": "butler", "base_url": server.url + "/v1/chat/completions", "tokenized_requests": False})
    answers = {sample["doc"]["question"]: sample["resps"][0][0] for sample in out["samples"]["chat"]}
    differ = 0
    for question in questions:
        text = post(server.url + "/apply-template", {"messages": [{"role": "user", "content": question}]})["prompt"]
        body = {"prompt": text, "n_predict": 32, "temperature": 0, "stop": [stop]}
        differ += post(server.url + "/completion", body)["content"] != answers[question]
    server.stop()
    print(f"{len(questions)} chats through local-chat-completions, {differ} answers differ from those of /completion")
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--butler", default="./butler")
    parser.add_argument("--tasks", default="hellaswag,piqa,arc_easy,winogrande")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--length", type=int, default=2048, help="tokens of the longest text")
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--concurrent", type=int, default=1, help="requests at the same time")
    parser.add_argument("--batch", type=int, default=1, help="prompts of a request")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--chat", action="store_true")
    args = parser.parse_args()
    tasks = [task for task in args.tasks.split(",") if find_file(args.data, task)]
    if not tasks:
        sys.exit(f"{args.data} has none of the files of {args.tasks}: {json.dumps(FILES)}")
    os.environ.setdefault("OPENAI_API_KEY", "none")
    logging.disable(logging.INFO)
    if args.chat:
        sys.exit(chat(args))
    use_files(args.data, tasks, args.limit)
    differ = (measure if args.time else compare)(tasks, args)
    if differ:
        sys.exit(f"not equal: {differ} numbers differ")


if __name__ == "__main__":
    main()
