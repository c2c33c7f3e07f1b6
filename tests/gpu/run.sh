#!/usr/bin/env bash
# run.sh - what a machine with a GPU can be tested with: ops and products against the cpu, gates on
# one GPU, every transport and signal on one GPU and on two, the models' logits against the cpu's,
# kernels under compute-sanitizer, and what products reach. A short table comes last.
#
#   tests/gpu/run.sh [BUILD] [STEP..]     BUILD: a build folder (build/release); steps: see below
set -uo pipefail

root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
build=${1:-$root/build/release}
shift || true
steps=("$@")
((${#steps[@]} > 0)) || steps=(tests gates transports logits sanitizer bench)
pp=$build/bin/memra-pp
shared=${MEMRA_SHARED:-$root/../shared}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
table=()

note() { # NAME STATUS SECONDS TEXT
    table+=("$(printf '%-34s %-5s %4s s  %s' "$1" "$2" "$3" "$4")")
}

# Run a command under a limit; its last line stands in the table. Output without a device is a skip,
# which is no success here.
check() { # NAME LIMIT COMMAND..
    local name=$1 limit=$2 began=$SECONDS code=0 word=ok
    shift 2
    timeout "$limit" "$@" >"$work/out" 2>&1 || code=$?
    ((code == 0)) || word="RED"
    ! grep -q '^1..0 # SKIP' "$work/out" || word="SKIP"
    [[ $word == ok ]] || { printf '%s\n' "--- $name ($code)" && tail -n 25 "$work/out"; }
    note "$name" "$word" $((SECONDS - began)) "$(grep -v '^#' "$work/out" | tail -n 1 | cut -c1-90)"
}

models() {
    printf '%s\n' "$root/launch/demo/demo.gguf" "$shared"/models/stories260K/*.gguf \
        "$shared"/models/stories-q256/*.gguf
}

for step in "${steps[@]}"; do
    case $step in
    tests)
        for t in matmul ops attention sample; do check "gpu $t" 300 "$build/bin/tests/gpu_${t}_test"; done
        ;;
    gates)
        for n in 1 2 4; do
            devices=$(printf '0,%.0s' $(seq "$n"))
            check "gate ppn, $n on one GPU" 120 "$pp" gate ppn --stages "$n" --devices "${devices%,}"
            check "gate prime, $n on one GPU" 120 "$pp" gate prime --stages "$n" \
                --devices "${devices%,}"
        done
        ;;
    transports)
        check "transports and deaths" 280 "$build/bin/tests/gpu_transport_test"
        for devices in 0,0 0,1; do
            [[ $devices == 0,0 ]] || "$pp" devices | grep -q '^cuda:1 ' || continue
            check "gate transport, devices $devices" 120 "$pp" gate transport --stages 2 \
                --splits 4 --devices "$devices"
        done
        ;;
    logits)
        while read -r model; do
            [[ -r $model ]] || continue
            check "logits $(basename "$model" .gguf)" 60 python3 "$root/tests/gpu/logits.py" "$pp" \
                "$model"
        done < <(models)
        ;;
    sanitizer)
        # One test asks for more memory than there is: that error is the driver's answer, not a fault.
        for t in ops attention sample; do
            check "memcheck $t" 60 compute-sanitizer --tool memcheck --report-api-errors no \
                --error-exitcode 9 "$build/bin/tests/gpu_${t}_test"
        done
        ;;
    bench) timeout 200 "$build/bin/bench/cuda_bench" ;;
    *)
        echo "unknown step '$step'" >&2
        exit 2
        ;;
    esac
done
printf '%s\n' "${table[@]}"
! printf '%s\n' "${table[@]}" | grep -qE ' (RED|SKIP) '
