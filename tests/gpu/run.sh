#!/usr/bin/env bash
# run.sh - what a machine with a GPU can be tested with, in under eight minutes: ops, products, attention
# and the one-launch walk against the cpu; every gate with 1 to 4 stages on one GPU and with 2 on two;
# unsplit walks and placements; NaN; faults around GPUs; every transport and signal; a soak; logits
# against the cpu and against the Hugging Face library; memory against the plan; kernels under
# compute-sanitizer; speeds. A short table comes last.
#
#   tests/gpu/run.sh [BUILD] [STEP..]     BUILD: a build folder (build/release); steps: see below
#
# Red: a check failed, or was skipped: there is a GPU here. Python steps need numpy, truth also torch,
# transformers and gguf: without them they are named as not run, and nothing else is.
set -uo pipefail

root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
build=${1:-$root/build/release}
shift || true
steps=("$@")
((${#steps[@]} > 0)) ||
    steps=(bench memory truth sanitizer tests soak transports gates placements poison faults logits)
pp=$build/bin/memra-pp
export MEMRA_BUILD=$build # also where it was moved after it was built
shared=${MEMRA_SHARED:-$root/../shared}
. "$root/tests/gpu/table.bash"
. "$root/tests/gpu/faults.bash"

has_modules() { # NAME MODULE..: for the step NAME
    local name=$1 module
    shift
    for module; do
        python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)" \
            2>/dev/null && continue
        not_here "$name" "no python3 with $module"
        return 1
    done
}

on_gpus() { # N: the first GPU N times
    printf '0,%.0s' $(seq "$1") | sed 's/,$//'
}

has_second() {
    "$pp" devices | grep -q '^cuda:1 '
}

models() {
    local model
    for model in "$root"/launch/demo/demo.gguf "$root"/tests/fixtures/*.gguf \
        "$shared"/models/stories260K/*.gguf "$shared"/models/stories-q256/*.gguf; do
        [[ ! -r $model ]] || printf '%s\n' "$model"
    done
}

# Every gate also walks one stage, its reference, serially and pipelined.
gates() {
    local splits=('' '' '4' '3,6' '2,4,6') n gate
    for gate in ppn prime batch spec recovery; do
        for n in 2 3 4; do
            check "gate $gate, 1 and $n on one GPU" 120 "$pp" gate "$gate" --stages "$n" --kills 8 \
                --splits "${splits[n]}" --devices "$(on_gpus "$n")"
        done
        ! has_second || check "gate $gate, 1 and 2 on two GPUs" 120 "$pp" gate "$gate" --stages 2 \
            --kills 8 --splits 4 --devices 0,1
    done
}

transports() {
    check "transports, signals, deaths" 280 "$build/bin/tests/gpu_transport_test"
    alone "rows with their tokens between devices" 120 "$build/bin/tests/gpu_ring_test"
    check "gate transport, one GPU" 120 "$pp" gate transport --stages 2 --splits 4 --devices 0,0
    ! has_second || check "gate transport, two GPUs" 120 "$pp" gate transport --stages 2 --splits 4 \
        --devices 0,1
}

# The kernels alone, and the small model in two processes: a prompt of more rows than a decode step ever
# has, then a single step. Kernels are slow there: no stage is to be called hung, and racecheck, the
# slowest, has each kernel of attention and of the walk once, and no drawing.
#
# Racechecks of today report hazards between accesses that __syncthreads() separates once a part of the
# block has met at a barrier of its own, as the walk's warps do: gpu_named_barrier shows it. Where the
# one that is there does so, what it says of the walk is not judged.
sanitizer() {
    local tool t only follows=1
    local text="Once upon a time, there was a little girl named Lily. She loved to play outside. "
    local run=("$pp" run -m "$root/launch/demo/demo.gguf" -n 2 --temp 0 --stages 2 --devices '0,0'
        --hang-timeout 100 --start-timeout 100 -p "$text$text$text$text")
    command -v compute-sanitizer >/dev/null || {
        not_here sanitizer "no compute-sanitizer"
        return
    }
    compute-sanitizer --tool racecheck --error-exitcode 9 "$build/bin/tests/gpu_named_barrier" \
        >/dev/null 2>&1 || follows=0
    for tool in racecheck memcheck synccheck; do
        local under=(compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9)
        # Tests ask for more memory than there is: that error is the driver's answer, not a fault.
        [[ $tool != memcheck ]] || under+=(--report-api-errors no)
        if [[ $tool == racecheck ]] && ((!follows)); then
            not_here "racecheck, walk, small model" "it calls gpu_named_barrier a race"
        else
            check "$tool, small model, 2 stages" 180 "${under[@]}" "${run[@]}"
        fi
        for t in ops attention walk sample; do
            only=()
            case $tool,$t in
            racecheck,sample) continue ;;
            racecheck,walk) ((follows)) || continue ;;&
            racecheck,attention | racecheck,walk) only=(each_kernel_once) ;;
            esac
            check "$tool, $t" 180 "${under[@]}" "$build/bin/tests/gpu_${t}_test" "${only[@]}"
        done
    done
}

# unsplit_gate NAME ARGUMENT..: green, and its unsplit arms were walked. They come last.
unsplit_gate() {
    local out
    out=$("$pp" gate "$@") || { printf '%s\n' "$out" && return 1; }
    grep '^ok .*unsplit.*unsplit step' <<<"$out" || { printf '%s\n' "$out" && return 1; }
    echo "$(grep -c 'unsplit step' <<<"$out") arms walked unsplit"
}

# survives STAGE ARGUMENT..: killed in a decode step on one GPU, the story is that of one stage.
survives() {
    local stage=$1 story=(run -p "Once upon a time" --temp 0 -n 60) want got err
    shift
    err=$(mktemp "$work/err.XXXXXX")
    want=$("$pp" "${story[@]}" --stages 1 --devices 0) || return 1
    got=$("$pp" "${story[@]}" --stages 3 --devices 0,0,0 "$@" --fault "stage=$stage,at=decode,kind=kill" \
        2>"$err") || { cat "$err" && return 1; }
    [[ $got == "$want" ]] && grep 'took its place' "$err"
}

# poisoned STAGE AT: exit code 7, a line that names the stage, and the story as far as it went.
poisoned() {
    local stage=$1 at=$2 story=(run -p "Once upon a time" --temp 0 -n 60 --stages 3) want got code=0 err
    err=$(mktemp "$work/err.XXXXXX")
    want=$("$pp" "${story[@]}" --devices 0,0,0) || return 1
    got=$("$pp" "${story[@]}" --devices 0,0,0 --fault "stage=$stage,at=$at,kind=nan" 2>"$err") || code=$?
    [[ $code == 7 && $want == "$got"* && $got != "$want" ]] || { cat "$err" && return 1; }
    grep "NaN or infinity in the hidden state at position .*, found by stage $stage " "$err"
}

# NaN ends the session that it is in, others' tokens are those that they draw alone, and so are those of
# sessions that follow in its blocks.
poison() {
    local fn=(bash -c '"$0" "$@"') stage at
    export -f poisoned
    export pp work
    check "poison, 1 to 3 stages on one GPU" 200 env MEMRA_POISON_DEVICE=cuda "$build/bin/tests/poison_test"
    for stage in 0 1 2; do
        for at in prime decode; do check "NaN in stage $stage, $at" 60 "${fn[@]}" poisoned "$stage" "$at"; done
    done
}

# Weights, K and V through CUDA IPC: on one GPU, and on two, where only prompts walk unsplit unasked.
placements() {
    local fn=(bash -c '"$0" "$@"') name stage # timeout runs programs, not functions
    export -f unsplit_gate survives refuses
    export pp work
    for name in prime batch spec; do
        check "gate $name unsplit, 3 on one GPU" 120 "${fn[@]}" unsplit_gate "$name" --stages 3 \
            --devices "$(on_gpus 3)"
    done
    check_code 1 "canaries of gate prime" 120 "$pp" gate prime --canary --stages 2 --devices 0,0
    check "weights on stage 0, one GPU" 120 "$pp" gate ppn --stages 3 --splits 2,5 --shard 0 \
        --devices "$(on_gpus 3)"
    check "the same, unsplit prompts" 120 "${fn[@]}" unsplit_gate prime --stages 2 --devices 0,0 --shard 0
    check "one stream, 4 stages" 120 "$pp" gate ppn --stages 4 --splits 2,4,6 --devices "$(on_gpus 4)" \
        --streams 0
    for stage in 0 1 2; do
        check "stage $stage killed, unsplit" 60 "${fn[@]}" survives "$stage" --batch-pp 0 --prime-pp 0
        check "stage $stage killed, weights on 0" 60 "${fn[@]}" survives "$stage" --shard 0 --prime-pp 0
    done
    has_second || return 0
    check "gate prime unsplit, two GPUs" 120 "${fn[@]}" unsplit_gate prime --stages 2 --devices 0,1
    check "gate batch unsplit, two GPUs" 120 "${fn[@]}" unsplit_gate batch --stages 2 --devices 0,1 \
        --allow-unsplit-batch 1
    check "weights on stage 0, two GPUs" 120 "$pp" gate ppn --stages 2 --splits 4 --devices 0,1 --shard 0
    check "unsplit decode refused" 30 "${fn[@]}" refuses 2 'weights of stage 1 on another device' \
        run -p Once -n 1 --stages 2 --devices 0,1 --batch-pp 0
    check "one stream refused" 30 "${fn[@]}" refuses 2 'stage 1 is on another than stage 0' \
        run -p Once -n 1 --stages 2 --devices 0,1 --streams 0
}

for step in "${steps[@]}"; do
    case $step in
    tests)
        for t in matmul ops attention walk sample; do
            check "gpu $t" 300 "$build/bin/tests/gpu_${t}_test"
        done
        ;;
    gates) gates ;;
    placements) placements ;;
    faults) faults ;;
    poison) poison ;;
    transports) transports ;;
    soak) check "soak, 2 and 4 on one GPU" 240 "$build/bin/tests/gpu_soak_test" ;;
    truth)
        has_modules truth torch transformers gguf || continue
        alone "truth, real widths" 240 python3 "$root/tests/gpu/truth.py" "$pp"
        ;;
    logits)
        has_modules logits numpy || continue
        while read -r model; do
            check "logits $(basename "$model" .gguf)" 60 python3 "$root/tests/gpu/logits.py" "$pp" \
                "$model"
        done < <(models)
        ;;
    memory) alone "memory against the plan" 200 "$build/bin/tests/gpu_memory_test" ;;
    sanitizer) sanitizer ;;
    bench)
        alone "products, read bandwidth" 100 "$build/bin/bench/cuda_bench"
        cat "$last_out"
        ;;
    *)
        echo "unknown step '$step'" >&2
        exit 2
        ;;
    esac
done
print_table
