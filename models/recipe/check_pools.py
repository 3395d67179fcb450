"""Fails if the generated tasks share a name or a sentence with the co-reference evaluation's pools."""
import argparse
import json
import re
import sys

import numpy as np
from tokenizers import Tokenizer

import pools
from tasks import Tasks


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("pools", help="mrcr_custom.json")
    ap.add_argument("--tokenizer", required=True, help="tokenizer.json that prepare.py wrote: some names are put together from its pieces")
    args = ap.parse_args()
    with open(args.pools) as f:
        theirs = json.load(f)
    names = {re.sub(r"\W", "", n.lower()) for n in theirs["location_names"]}
    texts = [x for k in ("philosophy_statements", "food_descriptions", "math_problems") for x in theirs[k]]
    texts += [x[k] for x in theirs["loc_intro_tieback_list"] for k in ("location_intro", "tieback_question")]
    everything = " ".join(texts).lower()
    bad = [n for n in (a + b for a in pools.COMPOUND_A for b in pools.COMPOUND_B) if n in names]
    maker = Tasks(Tokenizer.from_file(args.tokenizer), None, [], 0)
    maker.rng = np.random.default_rng(0)
    bad += [n for n in (maker.place(False) for _ in range(200000)) if n in names]
    ours = pools.OPENINGS + pools.AFTER + pools.FILLER + [f for f, _ in pools.FEATURES] + pools.PLANTED_SPOTS
    bad += [s for s in ours if len(s.split()) > 2 and s.lower().strip(".,") in everything]
    if bad:
        sys.exit(f"shared with the evaluation: {sorted(set(bad))}")
    print(f"disjoint: {len(names)} names and {len(texts)} sentences there, none here")


if __name__ == "__main__":
    main()
