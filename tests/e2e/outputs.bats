#!/usr/bin/env bats
# outputs.bats - where text, lines and bars of a command go, and what becomes of a run whose outputs cannot
# be written: a full disk, a limit, a reader that went away.

load ../support/common
load ../support/commands

setup() { memra_setup; }
teardown() { memra_teardown; }

@test "a limit on files is named where it bounds shared memory" {
    status=0
    (ulimit -f 10 && exec "$PP" run -p x -n 1 2>"$TEST_DIR/err" >"$TEST_DIR/out") || status=$?
    [[ $status == 4 && $(wc -l <"$TEST_DIR/err") == 1 ]]
    grep -q 'shared memory for the .*: File too large (ulimit -f bounds it too)' "$TEST_DIR/err"
}

@test "a limit on stacks is raised where that is allowed, and named where it is not" {
    local line
    run_pp run -p Once -n 40 --temp 0
    local want=$output
    for line in 'run -p Once -n 40 --temp 0 --stages 2' 'bench --sessions 2 --stages 2 -p 8 -n 8 -r 1' \
        'gate batch -p 24 -n 1 --stages 2'; do
        # shellcheck disable=SC2086 # words
        (ulimit -S -s 64 && exec "$PP" $line >"$TEST_DIR/out" 2>"$TEST_DIR/err")
        [[ $line != run* || $(<"$TEST_DIR/out") == "$want" ]]
        status=0
        # shellcheck disable=SC2086
        (ulimit -s 64 && exec "$PP" $line >"$TEST_DIR/out" 2>"$TEST_DIR/err") || status=$?
        [[ $status == 4 && ! -s $TEST_DIR/out && $(wc -l <"$TEST_DIR/err") == 1 ]]
        grep -qF 'error: the stack is limited to 65.5 kB (ulimit -s), and 1.0 MB are needed' "$TEST_DIR/err"
    done
    (ulimit -s 1024 && exec "$PP" run -p Once -n 40 --temp 0 --stages 2 >"$TEST_DIR/out" 2>"$TEST_DIR/err")
    [[ $(<"$TEST_DIR/out") == "$want" ]]
    assert_nothing_left
}

@test "a limit on descriptors is raised where that is allowed, and named where it is not" {
    run_pp run -p Once -n 40 --temp 0
    local want=$output n
    (ulimit -S -n 24 && exec "$PP" run -p Once -n 40 --temp 0 --stages 4 >"$TEST_DIR/out" 2>"$TEST_DIR/err")
    [[ $(<"$TEST_DIR/out") == "$want" ]]
    for n in 8 24 40; do
        status=0
        (ulimit -n $n && exec "$PP" run -p Once -n 40 --stages 4 >"$TEST_DIR/out" 2>"$TEST_DIR/err") || status=$?
        [[ $status == 4 && ! -s $TEST_DIR/out && $(wc -l <"$TEST_DIR/err") == 1 ]]
        grep -qE "error: [0-9]+ descriptors are open of $n \(ulimit -n\), and a pipeline of 4 stages needs [0-9]+ more" \
            "$TEST_DIR/err"
    done
    # What it says that it needs is enough: for a loss, for people who ask, for a trace.
    n=$(sed -E 's/.*error: ([0-9]+) descriptors.* needs ([0-9]+) more.*/\1 + \2/' "$TEST_DIR/err")
    (
        ulimit -n $((n))
        start_pp "$TEST_DIR/text" run -p Once -n 40 --temp 0 --stages 4 --trace "$TEST_DIR/t.json" \
            --fault 'stage=all,at=decode,kind=slow:10,every=1;stage=2,at=decode,kind=kill'
        wait_for 10 has_text "$TEST_DIR/text"
        for n in 1 2 3 4; do "$PP" status "$PP_PID" >/dev/null & done
        end_of "$PP_PID"
        [[ $END_CODE == 0 && $(<"$TEST_DIR/text") == "$want" ]]
    )
    assert_nothing_left
}

@test "a limit that leaves no room for threads ends with 4 and one line, and nothing aborts" {
    grep -q '^MEMRA_SANITIZE:STRING=.' "$MEMRA_BUILD/CMakeCache.txt" && skip "a sanitizer takes more than any limit"
    local line room='needs [0-9] threads and 4.2 MB beside their stacks, and there is no room: .*(ulimit -v)'
    for line in 'run -p Once -n 1' 'gate ppn -p 24 -n 1'; do
        status=0
        # shellcheck disable=SC2086 # words
        (ulimit -v 20480 && exec "$PP" $line >"$TEST_DIR/out" 2>"$TEST_DIR/err") || status=$?
        [[ $status == 4 && $(wc -l <"$TEST_DIR/err") == 1 ]]
        grep -q "error: a coordinator $room" "$TEST_DIR/err"
    done
    status=0
    (ulimit -v 20480 && exec "$PP" bench -p 8 -n 8 -r 1 >"$TEST_DIR/out" 2>"$TEST_DIR/err") || status=$?
    [[ $status == 4 && $(wc -l <"$TEST_DIR/err") == 1 ]]
    grep -qE 'error: no memory to measure the read bandwidth with: [0-9.]+ [MG]B are needed \(ulimit -v' "$TEST_DIR/err"
    (ulimit -v 20480 && exec "$PP" status >"$TEST_DIR/out" 2>"$TEST_DIR/err") # nobody to ask
    start_pp "$TEST_DIR/text" run -p Once -n 400 --temp 0 --fault 'stage=0,at=decode,kind=slow:20,every=1'
    wait_for 10 has_text "$TEST_DIR/text"
    status=0
    (ulimit -v 20480 && exec "$PP" status >"$TEST_DIR/out" 2>"$TEST_DIR/err") || status=$?
    [[ $status == 4 && ! -s $TEST_DIR/out ]]
    grep -q "error: status $room" "$TEST_DIR/err"
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    # A stage by itself: its own line, and the coordinator's. Below some limit, which depends on its
    # libraries, the system's loader speaks for it.
    local limit
    for limit in 24576 32768 40960 49152 57344; do
        printf '#!/bin/bash\n[[ $1 == --probe ]] || ulimit -v %s; exec "%s" "$@"\n' $limit \
            "$MEMRA_BUILD/bin/memra-stage" >"$TEST_DIR/limited"
        chmod +x "$TEST_DIR/limited"
        status=0
        "$PP" run -p Once -n 1 --stage-program "$TEST_DIR/limited" >"$TEST_DIR/out" 2>"$TEST_DIR/err" || status=$?
        ! grep -q "^memra-stage 0: error: a stage process $room" "$TEST_DIR/err" || break
    done
    grep -q "^memra-stage 0: error: a stage process $room" "$TEST_DIR/err"
    [[ $status == 4 && $(wc -l <"$TEST_DIR/err") == 2 ]]
    grep -q "^memra-pp: error: stage 0 (pid [0-9]*, layers 0-7) was lost while loading: ended with exit code 4, could not have" \
        "$TEST_DIR/err"
    assert_nothing_left
}

@test "text goes to stdout, the rest to stderr or the log file, by level" {
    run_pp run -p Once -n 2 --log-level warn
    [[ $status == 0 && ! -s $TEST_DIR/err && -s $TEST_DIR/out ]]
    run_pp run -p Once -n 2 --log-file "$TEST_DIR/log" --stages 2
    [[ $status == 0 && ! -s $TEST_DIR/err ]]
    grep -q 'stage 1: layers' "$TEST_DIR/log"
    refused 3 'No such file' run -m "$TEST_DIR/none" --log-file "$TEST_DIR/log"
    grep -q 'error: .*No such file' "$TEST_DIR/log"
    refused 4 '--log-file .* cannot be written' run --log-file "$TEST_DIR/none/log"
}

@test "a log file that cannot be written on: one line says so, the rest goes to stderr, exit code 4" {
    run_pp run -p Once -n 2
    local want=$output
    run_pp run -p Once -n 2 --log-file /dev/full
    [[ $status == 4 && $output == "$want" ]]
    [[ $(grep -c 'warning: --log-file /dev/full cannot be written: No space left' "$TEST_DIR/err") == 1 ]]
    grep -q 'stage 0: layers' "$TEST_DIR/err"
    grep -q 'stop: limit' "$TEST_DIR/err"
    run_pp run -m "$TEST_DIR/none" --log-file /dev/full
    [[ $status == 3 && $(grep -c 'error: .*No such file' "$TEST_DIR/err") == 1 ]]
    # A disk that is full later: every process says it, and a stage does not die of it.
    head -c 100000 /dev/zero >"$TEST_DIR/log" # so that the limit on files is this one's alone
    start_pp "$TEST_DIR/out" run -p Once -n 200 --temp 0 --stages 2 --log-level debug --log-file "$TEST_DIR/log" \
        --fault 'stage=all,at=decode,kind=slow:5,every=1'
    wait_for 10 has_text "$TEST_DIR/out"
    local limit
    limit=$(($(wc -c <"$TEST_DIR/log") + 10))
    prlimit --pid "$PP_PID" --fsize="$limit"
    kill -KILL "$(stages_of "$PP_PID" | head -1)"
    end_of "$PP_PID" 60 # sanitizers take their time
    [[ $END_CODE == 4 ]]
    grep -q "memra-pp: warning: --log-file $TEST_DIR/log cannot be written: File too large" "$TEST_DIR/out.err"
    grep -q 'took its place' "$TEST_DIR/out.err"
}

@test "a bar shows loading on a terminal, none in a pipe" {
    command -v script >/dev/null || skip "no script(1) for a terminal"
    # Slow enough in loading that a bar is due.
    local words
    words="$(printf %q "$PP") run -p Once -n 2 --stages 2 --fault stage=1,at=load,kind=slow:400"
    TERM=xterm script -qec "$words" /dev/null </dev/null >"$TEST_DIR/screen"
    grep -q 'loading stage 1 .*\[' "$TEST_DIR/screen"
    TERM=dumb script -qec "$words" /dev/null </dev/null >"$TEST_DIR/screen"
    fails grep -q 'loading' "$TEST_DIR/screen"
    run_pp run -p Once -n 2 --stages 2
    fails grep -q 'loading' "$TEST_DIR/err"
}

@test "a reader that goes away ends the run quietly; a full disk ends it with a line" {
    "$PP" run -p Once -n -1 --fault 'stage=0,at=decode,kind=slow:10,every=1' \
        --log-level warn 2>"$TEST_DIR/err" | head -c 8 >/dev/null
    [[ ${PIPESTATUS[0]} == 141 ]]
    [[ ! -s $TEST_DIR/err ]]
    status=0
    "$PP" run -p Once -n 5 >/dev/full 2>"$TEST_DIR/err" || status=$?
    [[ $status == 4 ]]
    grep -q 'standard output cannot be written: No space' "$TEST_DIR/err"
    status=0
    "$PP" run --help >/dev/full 2>/dev/null || status=$?
    [[ $status == 4 ]]
    local line
    for line in 'plan --json' devices status 'gate ppn -p 24 -n 1' 'gate ppn -p 24 -n 1 --stages 2 --json' \
        'bench --sessions 2 -p 8 -n 8 -r 1 -o csv' 'bench -p 8 -n 8 -r 1 -o json' 'bench -p 8 -n 8 -r 1' \
        'tokenize -p x' 'logits --tokens 1 -o -'; do
        status=0
        # shellcheck disable=SC2086 # words
        "$PP" $line --log-level error >/dev/full 2>"$TEST_DIR/err" || status=$?
        [[ $status == 4 && $(wc -l <"$TEST_DIR/err") == 1 ]]
        grep -q 'standard output cannot be written: No space' "$TEST_DIR/err"
    done
    "$PP" bench --sessions 2 -p 8 -n 8 -r 2 --log-level error -o csv 2>"$TEST_DIR/err" | head -c 8 >/dev/null
    [[ ${PIPESTATUS[0]} == 141 && ! -s $TEST_DIR/err ]]
    # A gate that nobody hears ends with what it is at.
    "$PP" gate all -p 24 -n 1 2>"$TEST_DIR/err" | head -n 2 >/dev/null
    [[ ${PIPESTATUS[0]} == 141 && ! -s $TEST_DIR/err ]]
    refused 4 '/dev/full cannot be written: No space' logits --tokens 1 -o /dev/full --log-level error
    status=0
    "$PP" run -p Once -n 5 >&- 2>"$TEST_DIR/err" || status=$?
    [[ $status == 4 ]]
    "$PP" run -p Once -n 5 <&- 2>&- >"$TEST_DIR/out"
    [[ -s $TEST_DIR/out ]]
    assert_nothing_left
}

@test "what is written never takes a model's place, nor a trace the log's" {
    local x=$TEST_DIR/x.gguf
    cp "$DEMO" "$x"
    refused 2 "^memra-pp: error: --trace $x would overwrite a model file" run -m "$DEMO" -p Once --trace "$x"
    refused 2 "^memra-pp: error: --log-file $x would overwrite a model file" run -m "$x" -p Once \
        --log-file "$x"
    refused 2 "^memra-pp: error: -o $x would overwrite a model file" logits -m "$x" --tokens 1 -o "$x"
    cmp "$DEMO" "$x"
    refused 2 '--trace .* is the file that the log goes to' run -p Once --log-file "$TEST_DIR/t" \
        --trace "$TEST_DIR/t"
}
