#!/bin/sh
# Decode steps on a device, as a Markdown table with its name: bench/gpu.sh MODEL.gguf [cuda:0|opencl:0 [DEPTH...]]. Sparse policies
# read one token in eight. Nothing is fetched. A row that does not end within a minute says so, so that all takes about 8 minutes at
# most. Exit status 1: at 32768 tokens (or BUTLER_GATE) or more a sparse policy is not ahead of dense attention, or a row is missing.
# BUTLER: another command than this folder's.
set -eu
model=${1:?bench/gpu.sh MODEL.gguf [cuda:0|opencl:0 [DEPTH...]]}
device=${2:-opencl:0}
shift $(($# < 2 ? $# : 2))
cd "$(dirname "$0")/.."
butler=${BUTLER:-./butler} gate=${BUTLER_GATE:-32768}
[ $# -gt 0 ] || set -- 4096 32768
echo "$(basename "$model"), $(git rev-parse --short=12 HEAD), $("$butler" info -m "$model" --device "$device" | sed -n "s/^device  *$device: //p"):"
echo
echo "| policy | tokens before | tokens/s | ms a token | times dense | MB of weights and cache read a token | GB/s |"
echo "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
met=0
for depth; do
    dense=
    for policy in full quest:budget=$((depth / 8)) tinyserve:budget=$((depth / 8)) fier:budget=$((depth / 8)); do
        row=$(timeout 60 "$butler" bench -m "$model" --device "$device" --kv "$policy" -d "$depth" -n 32 --json |
            python3 -IS -c 'import json, sys
row, policy, dense = json.load(sys.stdin), sys.argv[1], float(sys.argv[2] or "nan")
dense = row["ms_tok"] if policy == "full" else dense
mb = (row["weight_bytes"] + row["kv_bytes"] + row["metric_bytes"]) / 1e6
print("%.6f | `%s` | %d | %.1f | %.3f | %.2f | %.1f | %.1f |"
      % (row["ms_tok"], policy, row["depth"], row["tok_s"], row["ms_tok"], dense / row["ms_tok"], mb, mb / row["ms_tok"]))' "$policy" "$dense") || row=
        if [ -z "$row" ]; then
            echo "| \`$policy\` | $depth | failed, or took more than a minute | | | | |"
            [ "$depth" -lt "$gate" ] || met=1
            continue
        fi
        echo "${row#* }"
        ms=${row%% *}
        if [ "$policy" = full ]; then
            dense=$ms
        elif [ "$depth" -ge "$gate" ] && awk "BEGIN { exit (${dense:-0} > $ms) }"; then
            met=1
        fi
    done
done
exit $met
