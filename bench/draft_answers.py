#!/usr/bin/env python3
"""A draft answer from a part of a document, and the answer from all of it: how much sooner the draft comes, how often both are the same.

    bench/draft_answers.py MODEL.gguf [--share 0.14] [--documents 20] [--questions 2] [-o ROWS.jsonl]

Documents and multiple-choice questions are L-Eval's quality (all 15) and coursera (the shortest ones), from $BUTLER_DATA or ../shared/data. The part
is what a cheap score chooses: of passages of about 100 words the first of the document, then those with the rarest words of the question and its
options (each word weighs the logarithm of passages over passages that have it, once a passage), in the document's order, until SHARE of the
document's words is reached. Each question is asked twice: with its options, for the letter, and without them, for a sentence. Answers are greedy, of
at most 24 tokens, under --kv full. Times are processor time of one thread of whole commands; the document is read once for all of its questions, so
the whole text's time is that of the first question.
Rows that ROWS.jsonl has are not made again. Prints each row and, at the end, the medians and shares with 95 % intervals (Wilson).
"""
import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMS = {"letter": "{whole}\nAnswer with the letter of the right option only.", "sentence": "{stem}\nAnswer in one short sentence."}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--share", type=float, default=0.14, help="of the document's words")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--questions", type=int, default=2, help="of each document")
    parser.add_argument("-o", "--output", help="rows, one JSON object a line; what it has is not made again")
    parser.add_argument("--butler", default=str(ROOT / "butler"))
    return parser.parse_args()


def documents(n):
    folder = Path(os.environ.get("BUTLER_DATA", ROOT.parent / "shared" / "data")) / "long" / "leval"
    sets = [[json.loads(line) for line in (folder / f"{name}.jsonl").open()] for name in ("quality", "coursera")]
    return (sets[0] + sorted(sets[1], key=lambda document: len(document["input"].split())))[:n]


def words(text):
    return set(re.findall(r"\w+", text.lower()))


def passages(text, size=100):
    """The text in passages of whole sentences, of about so many words."""
    out, part = [], []
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        part.append(sentence)
        if sum(len(s.split()) for s in part) >= size:
            out.append(" ".join(part))
            part = []
    return out + ([" ".join(part)] if part else [])


def excerpt(text, question, share):
    parts = passages(text)
    having = Counter(word for part in parts for word in words(part))
    asked = words(question)
    score = [sum(math.log(len(parts) / having[word]) for word in asked & words(part)) for part in parts]
    chosen, room = set(), share * len(text.split())
    for i in [0] + sorted(range(1, len(parts)), key=lambda i: -score[i]):
        size = len(parts[i].split())
        if not chosen or size <= room:
            chosen.add(i)
            room -= size
    return "\n\n".join(parts[i] for i in sorted(chosen))


def ask(args, path, question, *flags):
    """The answer and the command's processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [args.butler, "ask", "-m", args.model, "-f", path, "--kv", "full", "--temp", "0", "-n", "24", "-t", "1", "--receipt", "0", *flags,
               question]
    said = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if said.returncode:
        sys.exit(said.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return said.stdout.strip(), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def wilson(k, n, z=1.96):
    centre, half = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)
    return (centre - half) / (n + z * z), (centre + half) / (n + z * z)


def letters(text):
    found = re.match(r"\W*([A-F]+)\b", text)
    return found[1] if found else ""


def make_rows(args, done, out):
    for d, document in enumerate(documents(args.documents)):
        with tempfile.TemporaryDirectory() as folder:
            whole, part = Path(folder, "document.txt"), Path(folder, "part.txt")
            whole.write_text(document["input"])
            seconds = None
            for q, whole_question in enumerate(document["instructions"][:args.questions]):
                part.write_text(excerpt(document["input"], whole_question, args.share))
                stem = re.split(r"\s+\(?A[.)]", re.sub(r"^Question \d+\. ", "", whole_question))[0]
                for form, words_of in FORMS.items():
                    if (d, q, form) in done:
                        continue
                    question = words_of.format(whole=whole_question, stem=stem)
                    draft, early = ask(args, part, question, "--no-cache")
                    answer, late = ask(args, whole, question, "--cache", Path(folder, "library"))
                    seconds = seconds or late
                    row = {"document": d, "question": q, "form": form, "draft": draft, "answer": answer, "right": letters(document["outputs"][q]),
                           "draft_s": round(early, 2), "answer_s": round(seconds, 2), "share": args.share}
                    print(json.dumps(row), file=out, flush=True)
                    print(f"document {d + 1} of {args.documents}: {json.dumps(row)}", file=sys.stderr, flush=True)
                    yield row


def main():
    args = arguments()
    rows = []
    if args.output and os.path.exists(args.output):
        rows = [json.loads(line) for line in open(args.output)]
    with open(args.output or os.devnull, "a") as out:
        rows += make_rows(args, {(row["document"], row["question"], row["form"]) for row in rows}, out)
    ratios = sorted(row["answer_s"] / row["draft_s"] for row in rows)
    print(f"a draft's answer comes {ratios[len(ratios) // 2]:.1f} times as soon (median; {ratios[0]:.1f} to {ratios[-1]:.1f})")
    letter, sentence = ([row for row in rows if row["form"] == form] for form in FORMS)
    for name, same in (("letter: the same", [letters(row["draft"]) == letters(row["answer"]) != "" for row in letter]),
                       ("letter: the draft's is right", [letters(row["draft"]) == row["right"] for row in letter]),
                       ("letter: the answer's is right", [letters(row["answer"]) == row["right"] for row in letter]),
                       ("sentence: the same text", [row["draft"] == row["answer"] for row in sentence])):
        low, high = wilson(sum(same), len(same))
        print(f"{name}: {sum(same)} of {len(same)}, {100 * low:.0f} to {100 * high:.0f} %")


if __name__ == "__main__":
    main()
