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

# train VERSION TOKENS OUTPUT FLAGS...
train() {
    ./butler train -m models/butler-default.gguf --data "$texts" --predictor "$1" --tokens "$2" -o "$3" \
        --length 1024 --batch 2 --every 50 --checkpoint 60 -t "${THREADS:-0}" "${@:4}"
}
sizes="--input attention --dim 16 --mid 256"
v1=$out/butler-default.tokenbutler.gguf v2=$out/butler-default.tokenbutler2.gguf
train v2 "${TOKENS_V2:-1200000}" "$v2" $sizes --lr 0.01
train v1 "${TOKENS_V1:-1200000}" "$v1" $sizes --lr 0.01

cp "$v1" "$v2" models/
cp "$v1.csv" docs/tokenbutler-v1.csv
cp "$v1.svg" docs/tokenbutler-v1.svg
cp "$v2.csv" docs/tokenbutler-v2.csv
cp "$v2.svg" docs/tokenbutler-v2.svg
