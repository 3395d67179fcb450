#!/bin/sh
# Decode steps on a device, as a Markdown table with its name: bench/gpu.sh MODEL.gguf [cuda:0|opencl:0 [DEPTH...]]. Nothing is fetched. A row
# that does not end within a minute says so, so that all takes less than 8 minutes.
set -eu
model=${1:?bench/gpu.sh MODEL.gguf [cuda:0|opencl:0 [DEPTH...]]}
device=${2:-opencl:0}
shift $(($# < 2 ? $# : 2))
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 4096 32768
echo "$(basename "$model"), $(git rev-parse --short=12 HEAD), $(./butler info -m "$model" --device "$device" | sed -n "s/^device  *$device: //p"):"
echo
echo "| policy | tokens before | tokens/s | ms a token | MB of weights and cache read a token | GB/s |"
echo "| --- | ---: | ---: | ---: | ---: | ---: |"
for depth; do
    for policy in full quest:budget=1024 tinyserve:budget=2048; do
        timeout 60 ./butler bench -m "$model" --device "$device" --kv "$policy" -d "$depth" -n 32 --json |
            python3 -c 'import json, sys
row = json.load(sys.stdin)
mb = (row["weight_bytes"] + row["kv_bytes"] + row["metric_bytes"]) / 1e6
print("| `%s` | %d | %.1f | %.3f | %.1f | %.1f |" % (row["policy"].split(",")[0], row["depth"], row["tok_s"], row["ms_tok"], mb, mb / row["ms_tok"]))' ||
            echo "| \`$policy\` | $depth | failed, or took more than a minute | | | |"
    done
done
