#!/usr/bin/env bats
# run_sh.bats - the options of tests/run.sh and tests/fuzz/run.sh: what cannot be meant is refused with
# one line before anything is installed or built.

load ../support/common

setup() { memra_setup; }
teardown() { memra_teardown; }

# refused SCRIPT PATTERN ARGUMENT..: exit code 2, one line, nothing on stdout.
refused() {
    local script=$1 pattern=$2 code=0
    shift 2
    "$MEMRA_ROOT/$script" "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || code=$?
    [[ $code == 2 && ! -s $TEST_DIR/out && $(wc -l <"$TEST_DIR/err") == 1 ]] &&
        grep -qE -- "$pattern" "$TEST_DIR/err" || {
        printf '%s %s: %s, not 2 with one line like "%s"\n' "$script" "$*" "$code" "$pattern" >&2
        cat "$TEST_DIR/err" >&2
        return 1
    }
}

# With --list, so that one that is not refused does not test everything.
refuse_run() {
    local pattern=$1
    shift
    refused tests/run.sh "$pattern" --list "$@"
}

@test "run.sh refuses numbers, expressions and words that cannot be meant" {
    local word
    for word in 0 -1 x '' 1.5 9999999; do
        refuse_run "^tests: -j '$word': a whole number from 1 to 999999" -j "$word"
    done
    refuse_run "--limit '0': a whole number from 1" --limit 0
    refuse_run "--fuzz 'x': a whole number from 0" --fuzz x
    refuse_run "--only '\(': not an extended regular expression" --only '('
    refuse_run "--only '\[a': not an extended regular expression" --only '[a'
    refuse_run "--only 'none-such': no test file matches; --list" --only none-such
    refuse_run "--preset 'fast': release, debug, asan or tsan" --preset fast
    refuse_run "unknown option '--frob'; see --help" --frob
    refuse_run "-j needs a value" -j
}

@test "run.sh lists what an expression matches" {
    "$MEMRA_ROOT/tests/run.sh" --only '(log|amount)_test$' --list -j 08 >"$TEST_DIR/out" 2>"$TEST_DIR/err"
    [[ ! -s $TEST_DIR/err && $(wc -l <"$TEST_DIR/out") == 2 ]]
    grep -q 'bin/tests/log_test$' "$TEST_DIR/out"
    "$MEMRA_ROOT/tests/run.sh" --only unit --list >"$TEST_DIR/units"
    [[ $(wc -l <"$TEST_DIR/units") == $(find "$MEMRA_ROOT/tests/unit" -name '*_test.c' | wc -l) ]]
}

@test "fuzz/run.sh refuses what has no end, and targets that are none" {
    refused tests/fuzz/run.sh 'SECONDS is a whole number' x
    refused tests/fuzz/run.sh '0 SECONDS would be without an end' 0
    refused tests/fuzz/run.sh "no target 'frob'; there are: .*gguf_fuzz.c" 1 frob
}

@test "run.sh gives its tests SIGINT back where it was started with it ignored" {
    # What it sources first says what the process ignores by then.
    mkdir -p "$TEST_DIR/clone/tests" "$TEST_DIR/clone/launch"
    cp "$MEMRA_ROOT/tests/run.sh" "$TEST_DIR/clone/tests"
    # shellcheck disable=SC2016 # for the script to expand
    echo 'setup_fail() { sed -n "s/^SigIgn:.*\(.\)$/\1/p" /proc/$$/status && exit "$1"; }' >"$TEST_DIR/clone/launch/setup.sh"
    local code=0
    (trap '' INT && exec "$TEST_DIR/clone/tests/run.sh" --frob) >"$TEST_DIR/out" || code=$?
    [[ $code == 2 ]]
    (((0x$(<"$TEST_DIR/out") & 2) == 0))
}
