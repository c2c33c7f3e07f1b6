#!/usr/bin/env bash
# run_tap.sh LIMIT_S FUZZ_S FILE - one test file as TAP for prove, whatever kind it is: a bats file,
# a fuzz target's source (fuzzed for FUZZ_S seconds: one test), or a program. What is not done after
# LIMIT_S seconds is ended, which prove counts as a failure.
set -euo pipefail
limit_s=$1 fuzz_s=$2 file=$3

# In a process group of its own (set -m; also so that SIGINT is not ignored in it, as in an ordinary
# background job), which is ended when we are.
limited() {
    local pid code=0
    set -m
    timeout --kill-after=5 "$@" </dev/null &
    pid=$!
    trap 'kill -TERM -- "-$pid"; exit 130' INT TERM
    wait "$pid" || code=$?
    ((code != 124)) || echo "# ended: still running after $1 s"
    return "$code"
}

fuzz() {
    local target log
    target=$(basename "$file" _fuzz.c)
    log=build/fuzz-$target.log
    echo 1..1
    if limited "$((10#$limit_s + 10#$fuzz_s))" sh tests/fuzz/run.sh "$fuzz_s" "$target" \
        >"$log" 2>&1; then
        echo "ok 1 - $target: nothing found in $fuzz_s s"
    else
        tail -n 40 "$log" | sed 's/^/# /'
        echo "not ok 1 - $target: see $log"
    fi
}

case $file in
*_fuzz.c) fuzz ;;
*.bats) limited "$limit_s" bats --tap "$file" ;;
*) limited "$limit_s" "$file" ;;
esac
