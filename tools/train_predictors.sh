#!/bin/bash
# Trains both TokenButler predictors of the default model from scratch and puts them beside it in models/.
#
#   tools/train_predictors.sh DATA [PREP]
#
# DATA: a folder with books-train-2.tar.xz and modern-text.tar.xz. PREP: what tools/default_model/prepare.py left; with it, the default
# model's retrieval tasks are part of the text (PYTHON: an interpreter with tools/default_model/requirements.txt).
# TOKENS_V1, TOKENS_V2: how long to train. THREADS: 0, one per core.
set -eu
cd "$(dirname "$0")/.."
data=${1:?usage: tools/train_predictors.sh DATA [PREP]}
prep=${2-}
out=build/predictor-data
mkdir -p "$out"

# One file per kind of text, in an order that does not depend on the file system.
pack() {
    [ -s "$out/$1.txt" ] && return
    name=$1; shift
    rm -rf "$out/$name.parts"; mkdir "$out/$name.parts"
    for archive in "$@"; do tar xJf "$archive" -C "$out/$name.parts"; done
    find "$out/$name.parts" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat > "$out/$name.part"
    rm -rf "$out/$name.parts"
    mv "$out/$name.part" "$out/$name.txt"
}
pack books "$data"/books-train-2.tar.xz
pack modern "$data"/modern-text.tar.xz
texts=$out/books.txt,$out/modern.txt
if [ -n "$prep" ]; then
    [ -s "$out/tasks.txt" ] || "${PYTHON:-python3}" tools/task_text.py --prep "$prep" --out "$out/tasks.txt"
    # A text that is named n times is read n times as often: a third of what is learned from.
    for _ in $(seq 12); do texts=$texts,$out/tasks.txt; done
fi

for version in v2 v1; do
    tokens=TOKENS_${version^^}
    name=butler-default.tokenbutler$([ $version = v1 ] || echo 2).gguf
    ./butler train -m models/butler-default.gguf --data "$texts" -o "$out/$name" --predictor $version --tokens "${!tokens:-2000000}" \
        --length 512 --batch 2 --dim 16 --mid 256 --lr 0.01 --every 100 -t "${THREADS:-0}" ${RESUME:+--resume}
    cp "$out/$name" models/
    cp "$out/$name.csv" "docs/tokenbutler-$version.csv"
    cp "$out/$name.svg" "docs/tokenbutler-$version.svg"
done
