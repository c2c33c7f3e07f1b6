#!/usr/bin/env bats
# MEMRA_PP_FAULT: each kind at each place where it can be, and what comes of it. kill and exit in
# prime and decode, and stages that are not replaced: recovery.bats, stages.bats; nan: poison.bats.
bats_require_minimum_version 1.5.0
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    memra_teardown
}

# story FAULT [ARGUMENT..]: a story over three stages, to its end.
story() {
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 40 --fault "$@"
}

undisturbed() {
    story ""
    [[ $CODE == 0 && -n $OUT ]]
    WANT=$OUT
}

# goes_on N PATTERN: the whole story, N replacements, a warning like that.
goes_on() {
    [[ $CODE == 0 && $OUT == "$WANT" && $(grep -c 'took its place' <<<"$ERR") == "$1" ]] &&
        grep -qE -- "warning: $2" <<<"$ERR" || {
        printf 'exit code %s, not %s replacements with "%s"\n%s\n%s\n' "$CODE" "$1" "$2" "$OUT" "$ERR" >&2
        return 1
    }
}

# While stage 1 is replaced, too.
KILLED='stage=1,at=decode,kind=kill'

@test "cuda: the stage ends with 6 and is replaced, in prime, decode and recovery; in load the run ends" {
    undisturbed
    local at
    for at in prime decode; do
        story "stage=1,at=$at,kind=cuda"
        goes_on 1 'stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): the device failed \(injected: kind=cuda\).*; pid '
    done
    story "$KILLED;stage=2,at=recovery,kind=cuda"
    goes_on 2 'stage 2 \(pid [0-9]+, layers [0-9]+-[0-9]+\): the device failed'
    story "$KILLED;stage=1,at=recovery,kind=cuda" # the replacement itself
    goes_on 1 'stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): the device failed.*once more'
    story "stage=1,at=load,kind=cuda"
    expect_error 5 'stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): the device failed'
    story "stage=1,at=decode,kind=cuda" --restarts 0
    expect_error 5 'stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): the device failed'
    assert_nothing_left
}

@test "oom: a load that gets no memory ends the run with 4, a replacement that gets none is tried again" {
    undisturbed
    story "stage=1,at=load,kind=oom"
    expect_error 4 'stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): no memory, an allocation was refused'
    story "$KILLED;stage=1,at=recovery,kind=oom"
    goes_on 1 'stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): no memory, an allocation was refused.*once more'
    story "$KILLED;stage=1,at=recovery,kind=oom,every=1" --restarts 3
    expect_error 5 'stage 1 .*an allocation was refused.*it was replaced 3 times'
    assert_nothing_left
}

@test "a fault whose moment did not come is told, one that came is not" {
    undisturbed
    story "stage=1,at=decode,step=99999,kind=kill;stage=0,at=decode,kind=slow:1,every=1;stage=2,at=recovery,kind=exit"
    [[ $CODE == 0 && $OUT == "$WANT" ]]
    [[ $(grep -c warning: <<<"$ERR") == 2 ]]
    grep -qxF "memra-pp: warning: --fault: stage=1,at=decode,step=99999,kind=kill never happened, its moment did not come" <<<"$ERR"
    grep -qF "warning: --fault: stage=2,at=recovery,kind=exit never happened" <<<"$ERR"
    # A run that is no conversation has no idle stages, but where it is slow (sanitizers): one is told.
    local stage
    for stage in 0 1 2; do
        story "stage=$stage,at=idle,kind=kill"
        [[ $CODE == 0 && $OUT == "$WANT" && $(grep -c warning: <<<"$ERR") == 1 ]]
        grep -qE "warning: (--fault: stage=$stage,at=idle,kind=kill never happened|stage $stage .*was lost .*SIGKILL; pid)" <<<"$ERR"
    done
    story "stage=1,at=decode,kind=kill;stage=2,at=recovery,kind=slow:1"
    goes_on 1 'stage 1 .*SIGKILL'
    has_no 'never happened' "$TEST_DIR/err"
    # Of all that are opened, one is enough; a run that ended otherwise has said how.
    MEMRA_PP_FAULT="stage=1,at=prime,kind=slow:1;stage=0,at=decode,kind=slow:1" pp bench -p 8 -n 8 -r 1 \
        --stages 2,1 -m "$DEMO"
    [[ $CODE == 0 && $(grep -c warning: <<<"$ERR") == 0 ]]
    MEMRA_PP_FAULT="stage=0,at=recovery,kind=kill" pp logits --tokens 1,2 -m "$DEMO" -o "$TEST_DIR/logits"
    [[ $CODE == 0 ]]
    grep -q 'warning: MEMRA_PP_FAULT: stage=0,at=recovery,kind=kill never happened' <<<"$ERR"
    # A stage that is not replaced itself replays no row.
    story "stage=1,at=decode,kind=kill;stage=0,at=recovery,kind=nan;stage=2,at=recovery,kind=corrupt"
    goes_on 1 'stage 1 .*SIGKILL'
    [[ $(grep -cE 'stage=[02],at=recovery,kind=(nan|corrupt) never happened' <<<"$ERR") == 2 ]]
    story "stage=1,at=decode,kind=kill;stage=1,at=recovery,kind=corrupt"
    has_no 'never happened' "$TEST_DIR/err"
    story "stage=1,at=load,kind=oom;stage=1,at=decode,kind=kill"
    expect_error 4 'no memory'
    has_no 'never happened' "$TEST_DIR/err"
    assert_nothing_left
}

@test "badmsg: counted, named and dropped, in load, prime, decode and recovery; too many and it is replaced" {
    undisturbed
    local at dropped='stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): a message of 32 bytes is not one of build .*; dropped, number 1 of this process'
    for at in load prime decode; do
        story "stage=1,at=$at,kind=badmsg"
        goes_on 0 "$dropped"
    done
    story "$KILLED;stage=1,at=recovery,kind=badmsg"
    goes_on 1 "$dropped"
    story "stage=1,at=decode,kind=badmsg,every=1" --restarts 2
    expect_error 5 'stage 1 \(pid [0-9]+, layers [0-9]+-[0-9]+\): a message of .*; it was replaced 2 times'
    assert_nothing_left
}

@test "hang and stop in recovery: of a survivor, and of the replacement" {
    undisturbed
    local kind
    for kind in hang stop; do
        story "$KILLED;stage=2,at=recovery,kind=$kind" --hang-timeout 0.4
        goes_on 2 'stage 2 .*(no progress|has not answered) for 0\.[4-9]'
    done
    story "$KILLED;stage=1,at=recovery,kind=hang" --start-timeout 0.5
    goes_on 1 'stage 1 .*no progress for 0\.[5-9].*as a replacement.*once more'
    story "$KILLED;stage=1,at=recovery,kind=stop" --start-timeout 0.5 --hang-timeout 0.2
    goes_on 1 'stage 1 .* for 0\.[5-9].*as a replacement.*--start-timeout.*stopped by SIGSTOP.*once more'
    assert_nothing_left
}

# idle_story FAULT [BEFORE [AFTER]]: a line is said, the stages are idle, another line is said; both
# lines' text in OUT. Status has BEFORE before the second line, AFTER after it.
idle_story() {
    idle_run --hang-timeout 0.4 --fault "$1"
    wait_for 5 status_has "${2:-ready}"
    say more
    wait_for 5 status_has "${3:-ready}"
    wait_for 10 is_idle
    "$PP" status "$PP_PID" >"$TEST_DIR/status"
    OUT=$(<"$TEST_DIR/out")
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    rm "$TEST_DIR/lines"
}

@test "stop, hang, cuda and badmsg while idle: the next line has its text" {
    local kind want
    idle_story ""
    want=$OUT
    for kind in stop cuda; do
        idle_story "stage=1,at=idle,kind=$kind" '"restarts": ?1'
        [[ $OUT == "$want" ]]
        grep -q 'took its place' "$TEST_DIR/out.err"
    done
    idle_story "stage=1,at=idle,kind=hang" ready '"restarts": ?1' # nobody knows until there is work
    [[ $OUT == "$want" ]]
    grep -q 'stage 1 .*no progress.*took its place' "$TEST_DIR/out.err"
    idle_story "stage=1,at=idle,kind=badmsg" '"bad_messages": ?1'
    [[ $OUT == "$want" ]]
    grep -q '^stage 1: messages that failed their check, dropped: 1$' "$TEST_DIR/status"
    assert_nothing_left
}
