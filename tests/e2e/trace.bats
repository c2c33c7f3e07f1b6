#!/usr/bin/env bats
# --trace: a file that shows what every stage and boundary did, whole however the run ends.
load ../support/common
load ../support/faults

setup() {
    memra_setup
    TRACE=$TEST_DIR/t.json
}

teardown() {
    memra_teardown
}

check() { # STAGES: what is in the trace, in SEEN
    SEEN=$(perl "$MEMRA_ROOT/tests/support/trace_check.pl" "$TRACE" "$1")
}

seen() { # NAME: how often
    awk -v name="$1" '{ n = $NF; sub(/ [0-9]+$/, "") } $0 == name { print n; exit }' <<<"$SEEN"
}

@test "every walk and crossing of a run is there, in an order that can be" {
    pp run -m "$DEMO" -p "Once upon a time there was a llama" -n 80 --temp 0 --draft 0 --stages 3 --prime-chunk 3 --trace "$TRACE"
    [[ $CODE == 0 ]]
    check 3
    # 80 tokens: the first by the prompt, each other by a walk of each stage; those of a round go back, but
    # for those of a step that none goes on after
    [[ $(seen decode) == $((3 * 79)) ]]
    (($(seen prompt) >= 3 * 3))
    [[ $(seen '0 -> 1') == $(seen '1 -> 2') && $(seen '0 -> 1') == $(($(seen prompt) / 3 + 79)) ]]
    (($(seen "2 -> 0") >= 79 - $(seen "decode steps") && $(seen "2 -> 0") < 79))
    [[ $(seen load) == 3 && $(seen probe) == 3 && $(seen head) == $(seen '0 -> 1') ]]
    grep -q '"stage 1: layers 2..4, cpu"' "$TRACE"
    assert_nothing_left
}

@test "the text is the same with it, and it takes no more than one file" {
    pp run -m "$DEMO" -p "Once upon a time" -n 60 --temp 0 --stages 2
    local want=$OUT
    cd "$TEST_DIR"
    pp run -m "$DEMO" -p "Once upon a time" -n 60 --temp 0 --stages 2 --trace "$TRACE"
    [[ $CODE == 0 && $OUT == "$want" ]]
    [[ $(find "$TEST_DIR" -name '*.json*' | wc -l) == 1 ]]
}

@test "a stage that is lost: its end, restart, replay" {
    pp run -m "$DEMO" -p "Once upon a time" -n 60 --temp 0 --stages 3 --fault "stage=1,at=decode,step=4,kind=kill" \
        --trace "$TRACE"
    [[ $CODE == 0 ]]
    check 3
    [[ $(seen lost) == 1 && $(seen restart) == 1 && $(seen resume) == 1 && $(seen load) == 4 ]]
    (($(seen replay) >= 1))
}

@test "verify steps, several pipelines in one file, from bench" {
    pp bench -m "$DEMO" -p 40 -n 40 -r 1 --sessions 3 --stages 2,3 --draft 4 --trace "$TRACE"
    [[ $CODE == 0 ]]
    [[ $(grep -c '"name":"process_name"' "$TRACE") == 2 ]]
    grep -q '"demo.gguf, 3 stages"' "$TRACE"
    check 3
    (($(seen decode) > 40))
}

@test "a gate's pipelines too" {
    pp gate spec -m "$DEMO" --stages 2 -p 24 -n 1 --trace "$TRACE"
    [[ $CODE == 0 ]]
    check 2
    (($(seen verify) > 0 && $(seen 'verify steps') > 0))
}

@test "a profiler sees the same stretches as NVTX ranges, each inside the one it belongs to" {
    [[ -e $MEMRA_BUILD/bin/tests/nvtx_spy.so ]] || skip "a build without a CUDA toolkit has no NVTX"
    NVTX_INJECTION64_PATH=$MEMRA_BUILD/bin/tests/nvtx_spy.so NVTX_SPY_FILE=$TEST_DIR/ranges \
        pp run -m "$DEMO" -p "Once upon a time" -n 40 --temp 0 --stages 2 --fault "stage=1,at=decode,step=4,kind=kill"
    [[ $CODE == 0 ]]
    local range
    for range in '0 load' '0 probe' '0 prompt' '0 decode' '0 starved' '0 blocked' '0 replay' '1 head'; do
        grep -qx "$range" "$TEST_DIR/ranges"
    done
    [[ $(grep -c ' load$' "$TEST_DIR/ranges") == 3 ]]
    (($(grep -c '^0 decode$' "$TEST_DIR/ranges") >= 2 * 39))
    has_no '^(0 head|1 decode|[2-9] .*)$' "$TEST_DIR/ranges"
}

@test "Ctrl-C, and a coordinator that is killed, leave a whole file" {
    start_pp "$TEST_DIR/out" bench -m "$DEMO" -p 64 -n 400 -r 1000 --sessions 4 --stages 2 --trace "$TRACE"
    wait_for 10 grep -q '"decode steps"' "$TRACE"
    kill -INT -- "-$PP_PID"
    end_within 1500
    [[ $END_CODE == 130 ]]
    check 2
    local tries
    for tries in 1 2 3; do
        rm "$TRACE" # what was waited for would stand in it already
        start_pp "$TEST_DIR/out" bench -m "$DEMO" -p 64 -n 400 -r 1000 --sessions 4 --stages 2 --trace "$TRACE"
        wait_for 10 grep -q '"decode steps"' "$TRACE"
        sleep "0.0$tries"
        kill -KILL "$PP_PID"
        end_of "$PP_PID"
        perl -MJSON::PP -0777 -e 'decode_json(<STDIN>)' <"$TRACE"
    done
}

@test "where no trace can be written, one line says so" {
    pp run -m "$DEMO" -p x -n 1 --trace "$TEST_DIR/no/such/t.json"
    expect_error 4 "--trace .*/no/such/t.json cannot be written: No such file"
    pp bench -m "$DEMO" -p 8 -n 8 -r 1 --trace /dev/null
    expect_error 4 "--trace /dev/null: no regular file"
    pp run -m "$DEMO" -p x -n 1 --trace ""
    expect_error 2 "--trace needs a name"
    [[ -z $OUT ]]
    # Standard output is no file to write in place; nor is "-" a file that anybody means.
    local command
    cd "$TEST_DIR"
    for command in 'run -p x -n 1' 'bench -p 8 -n 8 -r 1' 'gate ppn -p 24 -n 1'; do
        # shellcheck disable=SC2086 # words
        pp $command -m "$DEMO" --trace -
        expect_error 2 "--trace - is standard output elsewhere, and a trace is written in place: name a file"
        [[ -z $OUT && ! -e ./- ]]
    done
    pp run -m "$DEMO" -p x -n 1 --log-file -
    expect_error 2 "--log-file - is standard output elsewhere, and lines there would mix with the text"
    [[ -z $OUT && ! -e ./- ]]
    pp run -m "$DEMO" -p x -n 1 --temp 0 --trace ./- --log-file ./log-
    [[ $CODE == 0 && -s ./- && -s ./log- ]]
}

@test "a second run does not write over the trace of one that still runs" {
    start_pp "$TEST_DIR/first" run -m "$DEMO" -p x -n 60 --temp 0 --stages 2 --trace "$TRACE" \
        --fault 'stage=1,at=decode,kind=slow:20,every=1'
    wait_for 10 grep -q '"decode steps"' "$TRACE"
    local command
    for command in 'run -p x -n 1' 'bench -p 8 -n 8 -r 1' 'gate ppn -p 24 -n 1'; do
        # shellcheck disable=SC2086 # words
        pp $command -m "$DEMO" --trace "$TRACE"
        expect_error 4 "--trace $TRACE is being written by another run: name another file"
        [[ -z $OUT ]]
    done
    end_of "$PP_PID"
    [[ $END_CODE == 0 ]]
    check 2
    [[ $(seen decode) == $((2 * 59)) ]]
    pp run -m "$DEMO" -p x -n 1 --trace "$TRACE" # which is free again
    [[ $CODE == 0 ]]
    check 1
}

@test "a disk that is full ends the trace, not the run" {
    start_pp "$TEST_DIR/out" bench -m "$DEMO" -p 64 -n 400 -r 1000 --sessions 4 --stages 2 --trace "$TRACE"
    wait_for 10 grep -q '"decode steps"' "$TRACE"
    local limit=$(($(wc -c <"$TRACE") + 200000))
    prlimit --pid "$PP_PID" --fsize="$limit"
    wait_for 60 grep -q 'warning: --trace .*; the trace ends here, the run goes on' "$TEST_DIR/out.err"
    (($(wc -c <"$TRACE") <= limit))
    sleep 0.2
    is_alive "$PP_PID"
    kill -INT -- "-$PP_PID"
    end_within 1500
    [[ $END_CODE == 130 && $(grep -c 'the trace ends here' "$TEST_DIR/out.err") == 1 ]]
    # The same in a run that comes to its end: its text is whole, its exit code says that the trace is not.
    pp run -m "$DEMO" -p x -n 200 --temp 0
    start_pp "$TEST_DIR/out" run -m "$DEMO" -p x -n 200 --temp 0 --trace "$TEST_DIR/second.json" \
        --fault 'stage=all,at=decode,kind=slow:5,every=1'
    wait_for 10 grep -q '"decode steps"' "$TEST_DIR/second.json"
    prlimit --pid "$PP_PID" --fsize="$(($(wc -c <"$TEST_DIR/second.json") + 2000))"
    end_of "$PP_PID" 60 # sanitizers take their time
    [[ $END_CODE == 4 && $(<"$TEST_DIR/out") == "$OUT" ]]
    [[ $(grep -c 'the trace ends here, the run goes on (exit code 4 in the end)' "$TEST_DIR/out.err") == 1 ]]
}
