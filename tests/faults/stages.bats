#!/usr/bin/env bats
# A stage that is killed, stopped, ended, hung or slow, in load, prime, decode and idle, where none is
# replaced (--restarts 0; recovery.bats has the rest): one clear line that names it, within a second
# of when it can be known, and nothing left behind.
bats_require_minimum_version 1.5.0
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    [[ -z ${READER:-} ]] || kill -KILL "$READER" 2>/dev/null || true
    memra_teardown
}

# story ARGUMENT..: a story of the demo model over three stages.
story() {
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 --restarts 0 "$@"
}

@test "killed in load, prime, decode and idle: the first, a middle, the last stage" {
    for at in load prime decode; do
        for stage in 0 1 2; do
            story -n 40 --fault "stage=$stage,at=$at,kind=kill"
            expect_error 5 "stage $stage \(pid [0-9]+, layers .*SIGKILL"
            at_most ended "$MS" 3000
            assert_nothing_left
        done
    done
}

@test "a stage that exits is named with its exit code" {
    for at in load prime decode; do
        story -n 40 --fault "stage=1,at=$at,kind=exit"
        expect_error 5 "stage 1 .*exit code 70"
        assert_nothing_left
    done
}

@test "a stopped stage is noticed by its silence, in load, prime and decode" {
    for at in load prime decode; do
        story -n 40 --hang-timeout 0.5 --fault "stage=1,at=$at,kind=stop"
        expect_error 5 "stage 1 .*(has not answered|no progress).*stopped by SIGSTOP"
        at_most ended "$MS" 4000
        assert_nothing_left
    done
}

@test "a hung stage is noticed by its lack of progress, and not its starved neighbours" {
    for at in prime decode; do
        story -n 40 --hang-timeout 0.5 --fault "stage=1,at=$at,kind=hang"
        expect_error 5 "stage 1 .*no progress.*--hang-timeout"
        assert_nothing_left
    done
    story -n 40 --start-timeout 0.5 --fault "stage=1,at=load,kind=hang"
    expect_error 5 "stage 1 .*did not start: no progress for .* s after its start .*--start-timeout"
    assert_nothing_left
}

@test "a slow stage is not killed and changes nothing" {
    story -n 12
    local undisturbed=$OUT
    [[ $CODE == 0 ]]
    for at in load prime decode; do
        # Slower than the deadline, but moving.
        story -n 12 --hang-timeout 0.3 --start-timeout 0.3 --fault "stage=1,at=$at,kind=slow:900"
        [[ $CODE == 0 && $OUT == "$undisturbed" ]]
        [[ $MS -gt 900 ]]
    done
    story -n 12 --fault "stage=all,kind=slow:5,every=1"
    [[ $CODE == 0 && $OUT == "$undisturbed" ]]
    assert_nothing_left
}

# idle_run: a coordinator whose stages have nothing to do, because nobody reads its output. Sets
# PP_PID and waits until the stages are idle.
idle_run() {
    mkfifo "$TEST_DIR/pipe"
    # A pipe of one page, and a reader that reads nothing until it is told to.
    perl -e 'open(F, "+<", $ARGV[0]); fcntl(F, 1031, 4096); $SIG{USR1} = sub { $go = 1 };
        sleep 1 until $go; 1 while sysread(F, $b, 65536)' "$TEST_DIR/pipe" 3>&- 4>&- &
    READER=$!
    start_pp "$TEST_DIR/pipe" run -m "$DEMO" -p "Once" --temp 1 --stages 3 -n -1 --json --restarts 0 "$@"
    wait_for 10 is_idle
}

is_idle() {
    "$PP" status --json >"$TEST_DIR/s1" 2>/dev/null || return 1
    sleep 0.2
    "$PP" status --json >"$TEST_DIR/s2" 2>/dev/null || return 1
    grep -q '"ready"' "$TEST_DIR/s2" && grep -qE '"steps": ?[1-9]' "$TEST_DIR/s2" &&
        cmp -s <(grep -oE '"steps": ?[0-9]+' "$TEST_DIR/s1") <(grep -oE '"steps": ?[0-9]+' "$TEST_DIR/s2")
}

@test "killed or stopped while idle: health tells the truth within a second of detection" {
    idle_run --hang-timeout 0.5
    local victim
    victim=$(stages_of "$PP_PID" | head -n 1)
    kill -KILL "$victim"
    wait_for 1 status_has '"dead"'
    status_has "pid $victim"
    kill -USR1 "$READER"
    end_of "$PP_PID"
    kill -KILL "$READER"
    [[ $END_CODE == 5 ]]
    grep -q "error: stage . (pid $victim.*lost idle: killed by SIGKILL" "$TEST_DIR/pipe.err"
    assert_nothing_left
}

@test "stopped while idle" {
    idle_run --hang-timeout 0.5
    local victim
    victim=$(stages_of "$PP_PID" | tail -n 1)
    kill -STOP "$victim"
    wait_for 2 status_has '"dead"'
    kill -USR1 "$READER"
    end_of "$PP_PID"
    kill -KILL "$READER"
    [[ $END_CODE == 5 ]]
    grep -q "error: stage . (pid $victim.*has not answered.*stopped by SIGSTOP" "$TEST_DIR/pipe.err"
    assert_nothing_left
}

@test "the injected faults of idle are carried out" {
    idle_run --fault "stage=2,at=idle,kind=kill" || true
    wait_for 2 status_has '"dead"'
    kill -USR1 "$READER"
    end_of "$PP_PID"
    kill -KILL "$READER"
    [[ $END_CODE == 5 ]]
    grep -q 'error: stage 2 .*SIGKILL' "$TEST_DIR/pipe.err"
    assert_nothing_left
}

@test "a model file cut short while it runs: the stage is lost, the coordinator says why" {
    cp "$DEMO" "$TEST_DIR/m.gguf"
    start_pp "$TEST_DIR/out" run -m "$TEST_DIR/m.gguf" -p "Once" --temp 0 --stages 2 -n 200 \
        --fault "stage=0,kind=slow:20,at=decode,every=1"
    wait_for 10 test -s "$TEST_DIR/out"
    truncate -s 10000 "$TEST_DIR/m.gguf"
    end_of "$PP_PID"
    [[ $END_CODE == 5 ]]
    grep -qE 'error: stage [01] .*was lost.*changed on disk' "$TEST_DIR/out.err"
    assert_nothing_left
}

@test "fifty killed runs leave no entry anywhere" {
    for i in $(seq 50); do
        start_pp "$TEST_DIR/out" run -m "$DEMO" -p "Once" --temp 0 --stages 2 -n -1 --restarts 0
        wait_for 10 test -s "$TEST_DIR/out"
        if ((i % 2)); then
            kill -KILL "$PP_PID"
        else
            kill -KILL "$(stages_of "$PP_PID" | head -n 1)" || true
        fi
        end_of "$PP_PID"
    done
    assert_no_processes
    story -n 1
    [[ $CODE == 0 ]]
    assert_nothing_left
}
