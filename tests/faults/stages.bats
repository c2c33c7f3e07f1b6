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

@test "a program that is no stage program is said to be none" {
    story -n 1 --stage-program /bin/true
    expect_error 5 'stage . .* while loading: ended with exit code 0; it had said nothing: is it a stage program\? \(--stage-program\)'
    story -n 1 --stage-program /tmp
    expect_error 4 'stage . \(layers .*\): cannot start .*/tmp.*--stage-program'
    assert_nothing_left
}

@test "a stopped stage is noticed by its silence, in load, prime and decode" {
    for at in prime decode; do
        story -n 40 --hang-timeout 0.5 --fault "stage=1,at=$at,kind=stop"
        expect_error 5 "stage 1 .*(has not answered|no progress).*stopped by SIGSTOP"
        at_most ended "$MS" 4000
        assert_nothing_left
    done
    # A start has its own deadline, however short that of a step is.
    story -n 40 --hang-timeout 0.1 --start-timeout 1 --fault "stage=1,at=load,kind=stop"
    expect_error 5 "stage 1 .* for 1\.[0-9] s while loading.*limit 1.0 s, --start-timeout.*stopped by SIGSTOP"
    at_most ended "$MS" 4000
    # However short it is, it is not told as none.
    pp run -m "$DEMO" -p Once -n 1 --fault stage=0,at=load,kind=hang --start-timeout 0.04
    expect_error 5 "stage 0 .* did not start: no progress for 0\.0?[0-9]{2} s .*\(limit 0.040 s, --start-timeout\)"
    assert_nothing_left
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

# idle_ends PATTERN: the run ends by itself, within two seconds, with the cause.
idle_ends() {
    end_of "$PP_PID" 2
    CODE=$END_CODE
    expect_error 5 "$1" "$TEST_DIR/out.err"
    assert_nothing_left
}

@test "killed while idle" {
    idle_run --restarts 0
    local victim
    victim=$(stages_of "$PP_PID" | head -n 1)
    kill -KILL "$victim"
    idle_ends "stage . \(pid $victim.*lost idle: killed by SIGKILL"
}

@test "stopped while idle" {
    idle_run --restarts 0 --hang-timeout 0.5
    local victim
    victim=$(stages_of "$PP_PID" | tail -n 1)
    kill -STOP "$victim"
    idle_ends "stage . \(pid $victim.*has not answered.*stopped by SIGSTOP"
}

@test "the injected faults of idle are carried out" {
    idle_run --restarts 0 --fault "stage=2,at=idle,kind=kill" || true
    idle_ends 'stage 2 .*SIGKILL'
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
        rm -f "$TEST_DIR/out" # of the run before
        start_pp "$TEST_DIR/out" run -m "$DEMO" -p "Once" --temp 0 --stages 2 -n -1 --restarts 0 \
            --fault "stage=all,at=decode,kind=slow:20,every=1"
        wait_for 10 test -s "$TEST_DIR/out"
        if ((i % 2)); then
            kill -KILL "$PP_PID"
        else
            kill -KILL "$(stages_of "$PP_PID" | head -n 1)"
        fi
        end_of "$PP_PID"
    done
    assert_no_processes
    story -n 1
    [[ $CODE == 0 ]]
    assert_nothing_left
}
