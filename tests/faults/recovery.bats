#!/usr/bin/env bats
# A stage that is lost is replaced while the run goes on: the text is the undisturbed one, a line on
# stderr says what happened, and nothing is left behind.
bats_require_minimum_version 1.5.0
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    memra_teardown
}

# story ARGUMENT..: a story of the demo model over three stages, to its end.
story() {
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 60 "$@"
}

# undisturbed: the text that all of them must give, in WANT.
undisturbed() {
    story
    [[ $CODE == 0 && -n $OUT ]]
    WANT=$OUT
}

# expect_story N [PATTERN]: the story came whole, with N replacements, the first of which is told so.
expect_story() {
    local line='stage [0-9] \(pid [0-9]+, layers [0-9]+-[0-9]+\).*; pid [0-9]+ took its place after [0-9.]+ s'
    [[ $CODE == 0 && $OUT == "$WANT" ]] || {
        printf 'exit code %s\n%s\n%s\n' "$CODE" "$OUT" "$ERR" >&2
        return 1
    }
    [[ $(grep -cE "warning: $line" <<<"$ERR") == "$1" ]] && grep -qE -- "${2:-}" <<<"$ERR" || {
        printf 'not %s replacements with "%s":\n%s\n' "$1" "${2:-}" "$ERR" >&2
        return 1
    }
}

@test "killed or ended in prime and decode: the first, a middle, the last stage" {
    undisturbed
    for at in prime decode; do
        for stage in 0 1 2; do
            story --fault "stage=$stage,at=$at,kind=kill"
            expect_story 1 "stage $stage .*was lost in a step: killed by SIGKILL; pid"
            at_most ended "$MS" 3000
        done
        story --fault "stage=1,at=$at,kind=exit"
        expect_story 1 "stage 1 .*exit code 70; pid"
    done
    assert_nothing_left
}

@test "killed, stopped and hung while the first stage walks for all" {
    undisturbed
    local unsplit=(--batch-pp 0 --spec-pp 0 --prime-pp 0)
    story "${unsplit[@]}"
    expect_story 0
    for at in prime decode; do
        for stage in 0 1 2; do
            story "${unsplit[@]}" --fault "stage=$stage,at=$at,kind=kill"
            expect_story 1 "stage $stage .*was lost in a step: killed by SIGKILL; pid"
        done
        story "${unsplit[@]}" --hang-timeout 0.5 --fault "stage=0,at=$at,kind=hang"
        expect_story 1 "stage 0 .*no progress for 0.[56].*--hang-timeout.*; pid"
        story "${unsplit[@]}" --hang-timeout 0.5 --fault "stage=2,at=$at,kind=stop"
        expect_story 1 "stage 2 .*stopped by SIGSTOP; pid"
    done
    # an unsplit prompt is in no journal: from tokens, then
    story --prime-pp 0 --fault "stage=1,at=decode,kind=kill"
    expect_story 1 "rows again through all stages"
    story "${unsplit[@]}" --fault "stage=all,at=decode,kind=kill"
    expect_story 3
    assert_nothing_left
}

@test "all weights on the first stage: it takes the others with it, and the text goes on" {
    undisturbed
    for at in prime decode; do
        story --shard 0 --fault "stage=0,at=$at,kind=kill"
        expect_story 3 "stage 0 .*was lost in a step: killed by SIGKILL; pid"
        grep -qE "stage 2 \(pid [0-9]+, layers [0-9]+-[0-9]+\) ends with its weights: stage 0 .*; pid" <<<"$ERR"
        story --shard 0 --fault "stage=2,at=$at,kind=kill"
        expect_story 1 "stage 2 .*was lost in a step: killed by SIGKILL; pid"
        story --shard 0 --hang-timeout 0.5 --fault "stage=0,at=$at,kind=stop"
        expect_story 3 "stage 0 .*stopped by SIGSTOP; pid"
    done
    story --shard 0 --batch-pp 0 --prime-pp 0 --fault "stage=1,at=decode,kind=kill"
    expect_story 1 "stage 1 .*killed by SIGKILL; pid"
    assert_nothing_left
}

@test "stopped and hung stages are killed and replaced, their starved neighbours are not" {
    undisturbed
    for at in prime decode; do
        story --hang-timeout 0.5 --fault "stage=1,at=$at,kind=stop"
        expect_story 1 "stage 1 .*(has not answered|no progress).*stopped by SIGSTOP; pid"
        story --hang-timeout 0.5 --fault "stage=1,at=$at,kind=hang"
        expect_story 1 "stage 1 .*no progress for 0.[56].*--hang-timeout.*; pid"
    done
    assert_nothing_left
}

@test "two and three at once" {
    undisturbed
    story --fault "stage=0,at=decode,kind=kill;stage=2,at=decode,kind=kill"
    expect_story 2
    story --fault "stage=all,at=decode,kind=kill"
    expect_story 3
    assert_nothing_left
}

@test "a second death while one is replaced: a survivor, the replacement, a survivor that hangs" {
    undisturbed
    story --fault "stage=1,at=decode,kind=kill;stage=0,at=recovery,kind=kill"
    expect_story 2 "stage 0 .*was lost while another was replaced"
    story --fault "stage=1,at=decode,kind=kill;stage=1,at=recovery,kind=kill"
    expect_story 1 "stage 1 .*while loading, as a replacement: killed by SIGKILL; once more"
    story --hang-timeout 0.5 --fault "stage=2,at=decode,kind=exit;stage=1,at=recovery,kind=hang"
    expect_story 2 "stage 1 .*no progress for"
    assert_nothing_left
}

@test "one stage alone is replaced too" {
    undisturbed
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 -n 60 --fault "stage=0,at=decode,kind=kill"
    expect_story 1 "stage 0 "
    assert_nothing_left
}

@test "a slow stage is not replaced" {
    undisturbed
    story --hang-timeout 0.3 --start-timeout 0.3 --fault "stage=1,at=decode,kind=slow:900"
    expect_story 0
}

# begin_story: a long story in the background, slowly; PP_PID.
begin_story() {
    start_pp "$TEST_DIR/text" run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 150 \
        --fault "stage=0,at=decode,kind=slow:10,every=1" "$@"
    wait_for 10 test -s "$TEST_DIR/text"
}

@test "kill -9 of each stage in turn, again and again, by a user who watches" {
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 150
    [[ $CODE == 0 ]]
    local stage victim want=$OUT
    begin_story
    for stage in 0 1 2 0 1 2; do
        victim=$(pid_of_stage "$stage")
        kill -KILL "$victim"
        wait_for 5 pid_has_changed "$stage" "$victim"
    done
    status_has '"restarts": ?2'
    status_has '"last_fault": ?"stage 2 .*SIGKILL"'
    end_of "$PP_PID" 30
    [[ $END_CODE == 0 && $(<"$TEST_DIR/text") == "$want" ]]
    [[ $(grep -c 'took its place' "$TEST_DIR/text.err") == 6 ]]
    assert_nothing_left
}

@test "killed and stopped while idle: replaced at once, and the session goes on with its text" {
    local stage victim want
    idle_run --hang-timeout 0.5
    for stage in 0 1 2; do say more && wait_for 10 is_idle; done
    want=$(<"$TEST_DIR/out")
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    rm "$TEST_DIR/lines"
    idle_run --hang-timeout 0.5
    for stage in 0 1 2; do
        victim=$(pid_of_stage "$stage")
        kill -"$([[ $stage == 1 ]] && echo STOP || echo KILL)" "$victim"
        wait_for 2 pid_has_changed "$stage" "$victim"
        say more
        wait_for 10 is_idle
    done
    status_has '"last_fault": ?"stage 1 .*idle.*SIGSTOP'
    [[ $(<"$TEST_DIR/out") == "$want" ]]
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    assert_nothing_left
}

@test "a stage that is lost again and again ends the run, with the cause and its bound" {
    story --restarts 3 --restart-window 30 --fault "stage=1,at=decode,kind=exit,every=1"
    expect_error 5 "stage 1 .*exit code 70; it was replaced 3 times in 30 s, as often as --restarts allows"
    [[ $(grep -c 'took its place' <<<"$ERR") == 3 ]]
    # The pauses before the second and the third, twice as long, are told apart from their starts.
    local told
    told=$(grep 'took its place' <<<"$ERR")
    grep -qE '\(end [0-9.]+, start [0-9.]+, ' <(head -n 1 <<<"$told")
    grep -qE '\(end [0-9.]+, waited 0\.0(2[5-9]|[34][0-9]), start [0-9.]+, ' <(sed -n 2p <<<"$told")
    grep -qE '\(end [0-9.]+, waited 0\.0([5-9][0-9]), start [0-9.]+, ' <(sed -n 3p <<<"$told")
    # What is told adds up.
    perl -ne '/after ([\d.]+) s \(end ([\d.]+), (?:waited ([\d.]+), )?start ([\d.]+), .* ([\d.]+)\)/ &&
        abs($1 - $2 - ($3 // 0) - $4 - $5) < 0.004 or die' <<<"$told"
    assert_nothing_left
}

# story_of_program: a long story whose stages are of the copy $TEST_DIR/stage.
story_of_program() {
    cp "$STAGE" "$TEST_DIR/stage"
    begin_story --stage-program "$TEST_DIR/stage"
}

@test "a stage program that was removed, or replaced by another: the run goes on with its own" {
    local want how victim
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 150
    want=$OUT
    for how in 'rm stage' 'cp /bin/true new && mv new stage'; do
        story_of_program
        (cd "$TEST_DIR" && eval "$how")
        victim=$(pid_of_stage 1)
        kill -KILL "$victim"
        wait_for 5 pid_has_changed 1 "$victim"
        [[ $(<"/proc/$(pid_of_stage 1)/comm") == memra-stage ]]
        end_of "$PP_PID" 30
        [[ $END_CODE == 0 && $(<"$TEST_DIR/text") == "$want" ]]
        [[ $(grep -c 'took its place' "$TEST_DIR/text.err") == 1 ]]
    done
    assert_nothing_left
}

@test "a stage program that may not be run any more: the stage, its loss and the program are named" {
    story_of_program
    chmod -x "$TEST_DIR/stage"
    kill -KILL "$(pid_of_stage 1)"
    end_of "$PP_PID"
    CODE=$END_CODE
    expect_error 4 "stage 1 \(pid [0-9]+, layers 2-4\) .*SIGKILL; nothing can take its place: cannot start $TEST_DIR/stage: Permission denied" \
        "$TEST_DIR/text.err"
    assert_nothing_left
}

@test "no descriptors for a replacement: it is tried again until there are, or as often as allowed" {
    local want
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 150
    want=$OUT
    begin_story
    prlimit --pid "$PP_PID" --nofile=10:
    kill -KILL "$(stages_of "$PP_PID" | head -n 1)"
    wait_for 5 grep -q 'nothing can take its place: .*Too many open files; once more' "$TEST_DIR/text.err"
    prlimit --pid "$PP_PID" --nofile=1000:
    end_of "$PP_PID" 30
    [[ $END_CODE == 0 && $(<"$TEST_DIR/text") == "$want" ]]
    [[ $(grep -cE 'stage . .*SIGKILL; pid [0-9]+ took its place .*waited ' "$TEST_DIR/text.err") == 1 ]]
    rm "$TEST_DIR/text"
    begin_story --restarts 3
    prlimit --pid "$PP_PID" --nofile=10:
    kill -KILL "$(stages_of "$PP_PID" | head -n 1)"
    end_of "$PP_PID" 30
    CODE=$END_CODE
    expect_error 5 'stage . .*SIGKILL; nothing can take its place: .*Too many open files; that was tried 3 times' \
        "$TEST_DIR/text.err"
    assert_nothing_left
}

@test "a model file that changed on disk refuses the replacement" {
    cp "$DEMO" "$TEST_DIR/m.gguf"
    start_pp "$TEST_DIR/text" run -m "$TEST_DIR/m.gguf" -p "Once" --temp 0 --stages 2 -n 200 \
        --fault "stage=0,at=decode,kind=slow:20,every=1"
    wait_for 10 test -s "$TEST_DIR/text"
    printf x >>"$TEST_DIR/m.gguf"
    kill -KILL "$(pid_of_stage 1)"
    end_of "$PP_PID"
    [[ $END_CODE == 5 ]]
    grep -qE 'error: stage 1 .*SIGKILL; its model file changed on disk' "$TEST_DIR/text.err"
    assert_nothing_left
}

@test "the coordinator is killed while a stage is replaced: all end within 2 s, the next start works" {
    begin_story --hang-timeout 20
    # A replacement that takes its time: the run is in recovery as long as it is stopped.
    local victim
    victim=$(pid_of_stage 1)
    kill -STOP "$(pid_of_stage 0)"
    kill -KILL "$victim"
    wait_for 5 status_has '"recovering"'
    kill -KILL "$PP_PID"
    end_of "$PP_PID"
    assert_no_processes 2
    pp run -m "$DEMO" -p Once --temp 0 --stages 2 -n 4
    [[ $CODE == 0 ]]
    assert_nothing_left
}

entries_are() {
    [[ $(memra_run_entries | wc -l) == "$1" ]]
}

@test "fifty replacements leave no process, socket, file or descriptor behind" {
    start_pp "$TEST_DIR/text" run -m "$DEMO" -p "Once upon a time" --temp 1 --seed 1 --stages 2 -n -1 --ctx 512 \
        --restarts 64 --restart-window 0.1 --fault "stage=0,at=decode,kind=slow:40,every=1"
    wait_for 10 test -s "$TEST_DIR/text"
    local i victim fds files
    fds=$(ls "/proc/$PP_PID/fd" | wc -l)
    files=$(memra_run_entries | wc -l)
    for i in $(seq 50); do
        victim=$(pid_of_stage $((i % 2)))
        kill -KILL "$victim"
        wait_for 5 pid_has_changed $((i % 2)) "$victim"
    done
    has_stages "$PP_PID" 2
    [[ $(ls "/proc/$PP_PID/fd" | wc -l) == "$fds" ]]
    wait_for 2 entries_are "$files" # a socket goes a moment after its stage
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    assert_nothing_left
}
