#!/bin/sh
# Decode steps on a device, as a Markdown table with its name: bench/gpu.sh MODEL.gguf [cuda:0|opencl:0 [DEPTH...]]. Sparse policies
# read one token in eight. Nothing is fetched; tools/fixtures/random_model.py makes a model of any size. A row that does not end within
# 40 seconds says so, and after BUTLER_SECONDS (540) in all none begins.
#
# First the device has to compute what the CPU does: tests/card_gpu.c passes on cuda:0 (where `make build/tests/card_gpu` has built
# it), and the default model finds a pass key of 8192 tokens (or BUTLER_NEEDLE; 0: none is asked for) under each policy and attends to
# the same tokens. Exit status 2: it does not, and nothing is measured. 1: at 32768 tokens (or BUTLER_GATE) or more a sparse policy is
# not ahead of dense attention, or a row is missing. 3: the model or the device cannot be opened, or
# the CPU gives no answer to compare with. BUTLER, BUTLER_CARD: other programs
# than this folder's.
set -eu
model=${1:?bench/gpu.sh MODEL.gguf [cuda:0|opencl:0 [DEPTH...]]}
device=${2:-opencl:0}
begin=$(date +%s)
model=$(realpath -- "$model")
shift $(($# < 2 ? $# : 2))
cd "$(dirname "$0")/.."
butler=${BUTLER:-./butler} card=${BUTLER_CARD:-build/tests/card_gpu} gate=${BUTLER_GATE:-32768} length=${BUTLER_NEEDLE:-8192}
[ $# -gt 0 ] || set -- 4096 32768

case $device in cuda:*) # NVRTC and cuBLAS where the loader does not look: in a toolkit, in Python's packages
    for folder in /usr/local/cuda/lib64 $(python3 -c 'import glob, sys
print(*(folder for path in sys.path + ["build/python"] for folder in glob.glob(path + "/nvidia/*/lib")))'); do
        LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$folder
    done
    export LD_LIBRARY_PATH
    ;;
esac

# Kernels are compiled once (half a minute) and kept where butler keeps what it caches; without such a folder, for this run.
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}
if ! mkdir -p "$cache/butler" 2>/dev/null || ! [ -w "$cache/butler" ]; then
    XDG_CACHE_HOME=$(mktemp -d)
    export XDG_CACHE_HOME
    trap 'rm -rf "$XDG_CACHE_HOME"' EXIT
fi

wrong() {
    echo "bench/gpu.sh: $device does not compute what the CPU does: $1" >&2
    exit 2
}

# Output of a command that has so many seconds; what it cannot do and what it has no time for are told apart.
within() {
    seconds=$1 what=$2
    shift 2
    status=0
    timeout "$seconds" "$@" || status=$?
    [ $status -ne 124 ] || echo "bench/gpu.sh: $what: no answer within $seconds seconds" >&2
    return $status
}

info=$(within 120 "$device" "$butler" info -m "$model" --device "$device") || exit 3
echo "$(basename "$model"), $(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown), $(echo "$info" | sed -n "s/^device  *$device: //p"):"
echo
if [ "$device" = cuda:0 ] && [ -x "$card" ]; then
    said=$(within 120 "$card" "$card" 2>&1) || wrong "$said"
    case $said in *SKIPPED*) wrong "$card skips tests" ;; esac
    echo "- $card: passed"
fi
if [ "$length" -gt 0 ]; then
    needle() {
        within 120 "the needle on $1" "$butler" eval passkey -m models/butler-default.gguf --device "$1" --length "$length" --set depths=3 --limit 3 --json \
            --kv full --kv quest:budget=$((length / 8)) --kv tinyserve:budget=$((length / 8)) --kv fier:budget=$((length / 8))
    }
    on_cpu=$(needle cpu) || exit 3
    on_device=$(needle "$device") || wrong "the needle ended with an error"
    printf '%s\n%s\n' "$on_cpu" "$on_device" | python3 -IS -c 'import json, sys
rows = [json.loads(line) for line in sys.stdin]
half = len(rows) // 2
for cpu, own in zip(rows[:half], rows[half:]):
    same = own["policy"] == cpu["policy"] and own["value"] == cpu["value"] and abs((own["found"] or 0) - (cpu["found"] or 0)) < 0.01
    if len(rows) != 8 or not same or rows[0]["value"] < 1:
        sys.exit("{policy}: accuracy {value}, {found} of the highest weights".format(**own))
print("- pass key in %d tokens, found as often as on the CPU:" % rows[0]["length"],
      ", ".join("`%s` %.0f %%" % (row["policy"], 100 * row["value"]) for row in rows[half:]))' ||
        wrong "pass key of $length tokens"
fi
echo
echo "| policy | tokens before | tokens/s | ms a token | times dense | MB of weights and cache read a token | GB/s |"
echo "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
met=0
for depth; do
    dense=
    for policy in full quest:budget=$((depth / 8)) tinyserve:budget=$((depth / 8)) fier:budget=$((depth / 8)); do
        [ $(($(date +%s) - begin)) -lt "${BUTLER_SECONDS:-540}" ] || { echo "| \`$policy\` | $depth | no time was left | | | | |" && met=1 && continue; }
        row=$(timeout 40 "$butler" bench -m "$model" --device "$device" --kv "$policy" -d "$depth" -n 32 --json |
            python3 -IS -c 'import json, sys
row, policy, dense = json.load(sys.stdin), sys.argv[1], float(sys.argv[2] or "nan")
dense = row["ms_tok"] if policy == "full" else dense
mb = (row["weight_bytes"] + row["kv_bytes"] + row["metric_bytes"]) / 1e6
print("%.6f | `%s` | %d | %.1f | %.3f | %.2f | %.1f | %.1f |"
      % (row["ms_tok"], policy, row["depth"], row["tok_s"], row["ms_tok"], dense / row["ms_tok"], mb, mb / row["ms_tok"]))' "$policy" "$dense") || row=
        if [ -z "$row" ]; then
            echo "| \`$policy\` | $depth | failed, or took more than 40 seconds | | | | |"
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
