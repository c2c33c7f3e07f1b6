#!/usr/bin/env bash
# stages.sh - N stages on the GPUs that this machine has, one each or, where there are fewer, several on
# one: bytes over every edge by every transport and signal, hops, gates and their canaries at several
# cuts and with the devices in reversed order, stages killed, and what sessions and prompts reach. Under
# ten minutes; a short table comes last.
#
#   tests/gpu/stages.sh [N [BUILD [STEP..]]]    N: stages (4); BUILD: a build folder (build/release)
#                                               STEP: edges gates kills start bench big
set -uo pipefail

root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
n=${1:-4}
build=${2:-$root/build/release}
shift $(($# < 2 ? $# : 2))
steps=("$@")
((${#steps[@]} > 0)) || steps=(edges gates kills start bench big)
pp=$build/bin/memra-pp
. "$root/tests/gpu/table.bash"

gpus=$("$pp" devices | grep -oE '^cuda:[0-9]+ ' | sort -u | wc -l)
((gpus > 0)) || { echo "no GPU here" && exit 1; }
((gpus < n)) || gpus=$n

# Stage s of K on a GPU of its own or, where there are fewer, beside its neighbours; reversed on demand.
place() { # K [reversed]
    local s list=()
    for ((s = 0; s < $1; s++)); do list+=($((s * gpus / ($1 > gpus ? $1 : gpus)))); done
    [[ ${2:-} != reversed ]] || mapfile -t list < <(printf '%s\n' "${list[@]}" | tac)
    (IFS=, && echo "${list[*]}")
}

# K stages of which the first ones have one layer each and the last has the rest.
uneven() { # K
    seq -s, 1 $(($1 - 1))
}

layers=$((2 * n + 1))
# K ranges as equal as they can be. (`even`, said to gate ppn, asks for every cut there is.)
equal() { # K
    local s list=()
    for ((s = 1; s < $1; s++)); do list+=($((s * layers / $1))); done
    (IFS=, && echo "${list[*]}")
}

small=(--shape "layers=$layers,embd=512,ff=1024,heads=8,kv-heads=4,vocab=1024")
large=(--shape 8b --type q8_0)

edges() {
    local t s i
    for t in auto ipc host shm nccl; do
        # NCCL takes one process for each GPU.
        [[ $t != nccl ]] || ((gpus == n)) || continue
        check "edges: $t" 60 "$pp" gate transport "${small[@]}" --stages "$n" --splits even \
            --devices "$(place "$n")" --transport "$t"
    done
    for s in spin memop event; do
        check "edges: ipc, $s" 60 "$pp" gate transport "${small[@]}" --stages "$n" --splits even \
            --devices "$(place "$n")" --transport ipc --signal "$s"
    done
    for ((i = 0; i + 1 < gpus; i++)); do
        alone "hops of 16 KB, 32 KB, 1 MB: $i to $((i + 1))" 60 "$build/bin/bench/hop_bench" \
            "$i" $((i + 1))
        cat "$last_out"
    done
}

gates() {
    local g cut
    for g in ppn batch prime spec recovery; do
        for cut in "$(equal "$n")" auto "$(uneven "$n")"; do
            check "gate $g, N = $n, cuts $cut" 60 "$pp" gate "$g" "${small[@]}" --stages "$n" \
                --splits "$cut" --devices "$(place "$n")" --kills 4
        done
    done
    check "all gates, N = $n, reversed" 100 "$pp" gate all "${small[@]}" --stages "$n" \
        --splits "$(equal "$n")" --devices "$(place "$n" reversed)" --kills 4
    ((n < 4)) || check "all gates, N = $((n - 1))" 100 "$pp" gate all "${small[@]}" \
        --stages $((n - 1)) --splits "$(equal $((n - 1)))" --devices "$(place $((n - 1)))" --kills 4
    check_code 1 "canaries, all red" 100 "$pp" gate all --canary "${small[@]}" --stages "$n" \
        --splits "$(equal "$n")" --devices "$(place "$n")"
}

kills() {
    alone "20 kills, 8 sessions" 150 "$pp" gate recovery "${small[@]}" --stages "$n" \
        --splits even --devices "$(place "$n")" --sessions 8 --kills 20
    grep '^# N=' "$last_out"
    alone "4 kills, 8b, prompts of 2k" 120 "$pp" gate recovery "${large[@]}" --stages "$n" \
        --splits auto --devices "$(place "$n")" --kills 4 -p 2048 --ctx 2560
    grep '^# N=' "$last_out"
}

# From the command to the first token, what each stage loaded and how fast, and the host memory taken.
start() {
    alone "start of $n stages, 8b" 120 "$pp" bench "${large[@]}" --stages "$n" --splits auto \
        --devices "$(place "$n")" -p 1 -n 0 -r 1 --log-level debug
    grep -E 'weights loaded|made in' "$last_out"
    grep -E '^(MemTotal|MemAvailable):' /proc/meminfo
}

counts() { # the numbers of stages to compare, as a list
    ((n == 2)) && echo "1,2" || echo "1,2,$n"
}

# One session; a prompt of 32 chunks; 2N and 8N sessions with the same rows in each walk, and with one
# stage that batches them all.
measure() { # MODEL_OPTION..
    "$pp" bench "$@" --devices auto --splits auto --stages "$(counts)" -p 4096 -n 64 -r 2
    "$pp" bench "$@" --devices auto --splits auto --stages "$(counts)" --prime-chunk 256 -p 8192 -n 0 \
        --ctx 8200 -r 2
    "$pp" bench "$@" --devices auto --splits auto --stages "$(counts)" \
        --sessions $((2 * n)),$((8 * n)) --batch 0,2,8 -p 64 -n 64 -r 2
}

bench() {
    alone "bench 8b Q8_0" 200 bash -c 'measure "$@"' _ "${large[@]}"
    cat "$last_out"
}

# The weights alone are 75 GB (Q8_0) or 141 GB (BF16) of device memory, and of host memory at first.
big() {
    ((gpus == n)) || { not_here "bench 70b" "one GPU for each stage is not here" && return; }
    alone "bench 70b Q8_0" 240 bash -c 'measure "$@"' _ --shape 70b --type q8_0
    cat "$last_out"
    ((n < 8)) || alone "70b BF16" 240 "$pp" bench --shape 70b --type bf16 --devices auto --splits auto \
        --stages "$n" -p 2048 -n 32 -r 1 --log-level debug
}

export -f measure counts
export pp n
for step in "${steps[@]}"; do
    case $step in
    edges | gates | kills | start | bench | big) "$step" ;;
    *) echo "unknown step '$step'" >&2 && exit 2 ;;
    esac
done
print_table
