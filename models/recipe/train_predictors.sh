#!/bin/bash
# Trains both TokenButler predictors of a model from scratch and puts them beside it.
#
#   models/recipe/train_predictors.sh [--tokens N] [--predictor v1|v2] [--model MODEL.gguf] [--out DIR] [--threads N] DATA [PREP]
#
# DATA: a folder with books-train-2.tar.xz and modern-text.tar.xz. PREP: what models/recipe/prepare.py left; with it, the default
# model's retrieval tasks are part of the text (PYTHON: an interpreter with models/recipe/requirements.txt), else those of
# models/recipe/recall_text.py.
# --tokens: of each training (800000). --predictor: only this one.
# --model: models/butler-default.gguf. --out: where the predictors go; by default beside the model, and for the default model their
# curves then go to docs/. --threads: 0, one per core.
# A training that was interrupted goes on from its checkpoint when the same command is given again.
set -eu
usage() { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
tokens=800000 versions="v2 v1" model= out= threads=0
while [ $# -gt 0 ]; do
    case $1 in
    --tokens | --model | --out | --threads)
        [ $# -gt 1 ] || usage
        declare "${1#--}=$2"
        shift 2 ;;
    --predictor)
        [ $# -gt 1 ] && { [ "$2" = v1 ] || [ "$2" = v2 ]; } || usage
        versions=$2
        shift 2 ;;
    -*) usage ;;
    *) break ;;
    esac
done
[ $# = 1 ] || [ $# = 2 ] || usage
data=$(realpath "$1")
prep=${2:+$(realpath "$2")}
model=${model:+$(realpath "$model")} out=${out:+$(realpath "$out")}
cd "$(dirname "$0")/../.."
model=${model:-models/butler-default.gguf}
out=${out:-$(dirname "$model")}
name=$(basename "$model" .gguf)
work=build/predictor-data
mkdir -p "$work" "$out"
[ -x butler ] || { echo "$0: make butler first" >&2; exit 1; }

# One file per kind of text, in an order that does not depend on the file system.
pack() {
    [ -s "$work/$1.txt" ] && return
    rm -rf "$work/$1.parts"
    mkdir "$work/$1.parts"
    tar xJf "$2" -C "$work/$1.parts"
    find "$work/$1.parts" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat > "$work/$1.part"
    rm -rf "$work/$1.parts"
    mv "$work/$1.part" "$work/$1.txt"
}
pack books "$data/books-train-2.tar.xz"
pack modern "$data/modern-text.tar.xz"
texts=$work/books.txt,$work/modern.txt
if [ -n "$prep" ]; then
    if [ ! -s "$work/tasks.txt" ] || [ "$prep/tokenizer.json" -nt "$work/tasks.txt" ]; then
        "${PYTHON:-python3}" models/recipe/task_text.py --prep "$prep" --out "$work/tasks.part"
        mv "$work/tasks.part" "$work/tasks.txt"
    fi
    # A text that is named n times is read n times as often: a third of what is learned from.
    for _ in $(seq 12); do texts=$texts,$work/tasks.txt; done
else
    if [ ! -s "$work/recall.txt" ]; then
        python3 models/recipe/recall_text.py "$work/books.txt" --out "$work/recall.part"
        mv "$work/recall.part" "$work/recall.txt"
    fi
    for _ in $(seq 8); do texts=$texts,$work/recall.txt; done # a quarter
fi

# train v1|v2 NAME FLAGS: the predictor is put in its place when all of its training is done, by a rename, for a running program may have the
# old file mapped.
train() {
    local file=$name.$2.gguf version=$1 resume=
    shift 2
    [ ! -f "$work/$file.checkpoint" ] || resume=--resume
    ./butler train -m "$model" --data "$texts" --predictor "$version" --tokens "$tokens" -o "$work/$file" \
        --every 100 --checkpoint 60 -t "$threads" "$@" $resume
    cp "$work/$file" "$out/$file.part"
    mv "$out/$file.part" "$out/$file"
    if [ "$out" = models ]; then
        cp "$work/$file.svg" "docs/tokenbutler-$version.svg"
    fi
}
# The default model's predictors are older than kept states and least squares.
old="--dim 32 --lr 0.015 --uses 1 --queries 0"
for version in $versions; do
    case $name-$version in
    butler-default-v1) train v1 tokenbutler --mid 512 $old ;;
    butler-default-v2) train v2 tokenbutler2 --mid 256 --begin random $old ;;
    smollm2-v1) train v1 tokenbutler --mid 192 --lr 0.0015 ;;
    smollm2-v2) train v2 tokenbutler2 --mid 160 ;;
    *-v1) train v1 tokenbutler ;;
    *-v2) train v2 tokenbutler2 ;;
    esac
done
