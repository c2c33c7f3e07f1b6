#!/usr/bin/env bash
# run.sh - what a machine with a GPU can be tested with: ops and products against the cpu, gates on
# one GPU, unsplit walks and placements, every transport and signal on one GPU and on two, the models'
# logits against the cpu's, kernels under compute-sanitizer, and what products reach. A short table comes
# last.
#
#   tests/gpu/run.sh [BUILD] [STEP..]     BUILD: a build folder (build/release); steps: see below
set -uo pipefail

root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
build=${1:-$root/build/release}
shift || true
steps=("$@")
((${#steps[@]} > 0)) || steps=(tests gates placements transports logits sanitizer bench)
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

# unsplit_gate NAME ARGUMENT..: green, and its unsplit arms were walked. They are the last lines.
unsplit_gate() {
    local out
    out=$("$pp" gate "$@") || { printf '%s\n' "$out" && return 1; }
    grep '^ok .*unsplit.*unsplit step' <<<"$out" || { printf '%s\n' "$out" && return 1; }
}

canaries() {
    local code=0
    "$pp" gate "$@" --canary || code=$?
    ((code == 1))
}

# survives STAGE ARGUMENT..: killed in a decode step on one GPU, the story is that of one stage. Nothing
# stays of the dead in /dev/shm.
survives() {
    local stage=$1 story=(run -p "Once upon a time" --temp 0 -n 60) want got before
    shift
    before=$(ls /dev/shm)
    want=$("$pp" "${story[@]}" --stages 1 --devices 0) || return 1
    got=$("$pp" "${story[@]}" --stages 3 --devices 0,0,0 "$@" --fault "stage=$stage,at=decode,kind=kill" \
        2>"$work/err") || { cat "$work/err" && return 1; }
    cat "$work/err"
    [[ $got == "$want" && $(ls /dev/shm) == "$before" ]] && grep 'took its place' "$work/err"
}

# refuses PATTERN ARGUMENT..: exit code 2 and that line.
refuses() {
    local pattern=$1 code=0
    shift
    "$pp" run -p Once -n 1 --stages 2 "$@" >"$work/refused" 2>&1 || code=$?
    ((code == 2)) && grep "$pattern" "$work/refused"
}

export -f unsplit_gate canaries survives refuses
export pp work
fn=(bash -c '"$0" "$@"') # timeout runs programs, not functions

for step in "${steps[@]}"; do
    case $step in
    tests)
        for t in matmul ops attention; do check "gpu $t" 300 "$build/bin/tests/gpu_${t}_test"; done
        ;;
    gates)
        for n in 1 2 4; do
            devices=$(printf '0,%.0s' $(seq "$n"))
            check "gate ppn, $n on one GPU" 120 "$pp" gate ppn --stages "$n" --devices "${devices%,}"
            check "gate prime, $n on one GPU" 120 "$pp" gate prime --stages "$n" \
                --devices "${devices%,}"
        done
        ;;
    placements)
        # Weights, K and V through CUDA IPC: on one GPU, and on two, where only prompts walk unsplit unasked.
        for name in prime batch spec; do
            check "gate $name unsplit, 3 on one GPU" 120 "${fn[@]}" unsplit_gate "$name" --stages 3 --devices 0,0,0
        done
        check "canaries of gate prime" 120 "${fn[@]}" canaries prime --stages 2 --devices 0,0
        check "weights on stage 0, one GPU" 120 "$pp" gate ppn --stages 3 --splits 2,5 --devices 0,0,0 --shard 0
        check "the same, unsplit prompts" 120 "${fn[@]}" unsplit_gate prime --stages 2 --devices 0,0 --shard 0
        check "one stream" 120 "$pp" gate ppn --stages 4 --splits even --devices 0,0,0,0 --streams 0
        for stage in 0 1 2; do
            check "stage $stage killed, unsplit" 60 "${fn[@]}" survives "$stage" --batch-pp 0 --prime-pp 0
            check "stage $stage killed, weights on 0" 60 "${fn[@]}" survives "$stage" --shard 0 --prime-pp 0
        done
        "$pp" devices | grep -q '^cuda:1 ' || continue
        check "gate prime unsplit, devices 0,1" 120 "${fn[@]}" unsplit_gate prime --stages 2 --devices 0,1
        check "gate batch unsplit, devices 0,1" 120 "${fn[@]}" unsplit_gate batch --stages 2 --devices 0,1 \
            --allow-unsplit-batch 1
        check "weights on stage 0, devices 0,1" 120 "$pp" gate ppn --stages 2 --splits 4 --devices 0,1 --shard 0
        check "unsplit decode refused" 30 "${fn[@]}" refuses "read the weights of stage 1 on another device" \
            --devices 0,1 --batch-pp 0
        check "one stream refused" 30 "${fn[@]}" refuses "stage 1 is on another than stage 0" --devices 0,1 --streams 0
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
        for t in ops attention; do
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
