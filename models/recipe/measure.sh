#!/bin/bash
# The figures of the model's card, measured by butler itself, dense.
#
#   models/recipe/measure.sh MODEL DATA PREP OUT.jsonl
#
# DATA: the folder of data (books-valid.tar.xz, tokenbutler/, long/). PREP: what prepare.py left. PYTHON: an interpreter with
# requirements.txt. LIMIT: items of each task (default 100); LONG: of lines, 8k and 16k (LIMIT). Run again it goes on: what
# OUT.jsonl has is not measured again.
set -eu
model=$1 data=$2 prep=$3 out=$4 limit=${LIMIT:-100}
long=${LONG:-$limit}
here=$(cd "$(dirname "$0")" && pwd)
butler=${BUTLER:-$here/../../butler}
work=$(dirname "$out")/card-texts
mkdir -p "$work"

# 65,536 tokens of books-valid, the ones that evaluate.py and ngram.py measure on, and one book for filler.
[ -s "$work/valid.txt" ] || "${PYTHON:-python3}" - "$prep" "$work/valid.txt" <<'PY'
import os, sys
import numpy as np
from tokenizers import Tokenizer
prep, out = sys.argv[1:]
ids = np.load(os.path.join(prep, "valid.npy"), mmap_mode="r")[20000:20000 + 65536]
text = Tokenizer.from_file(os.path.join(prep, "tokenizer.json")).decode(ids.tolist())
with open(out, "w", newline="") as f:
    f.write(text)
PY
book=valid/Elizabeth_Gaskell__Cranford.txt
[ -s "$work/$book" ] || tar xJf "$data/books-valid.tar.xz" -C "$work" "$book"

measure() { "$butler" eval "$@" -m "$model" --kv full -o "$out"; }
measure coref --mode prefill --data "$data/tokenbutler/mrcr_custom.json" --limit "$limit"
for pairs in 20 75; do
    for style in words numbers; do
        measure kv --mode prefill --set pairs=$pairs,style=$style --limit "$limit"
    done
done
measure lines --mode prefill --data "$data/long/longeval_lines/200_lines.jsonl" --limit "$long"
measure ppl --length 512,2048,8192,16384 --data "$work/valid.txt" --limit 1000
passkey() { # LENGTH DEPTHS
    measure passkey --mode prefill --length "$1" --limit "$2" --set depths="$2"
    measure passkey --mode prefill --length "$1" --limit "$2" --set depths="$2" --data "$work/$book"
}
passkey 2048 "$limit"
passkey 8192 "$long"
passkey 16384 "$long"
