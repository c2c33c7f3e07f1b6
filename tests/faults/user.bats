#!/usr/bin/env bats
# As a user would: launch/pp-run.sh streams a long story, and in another terminal the stages are
# killed with -9, again and again, each in turn. The script is that of a clone whose build is ours.
bats_require_minimum_version 1.5.0
load ../support/common
load ../support/faults
load ../support/fake_tools

setup() {
    memra_setup
    export CLONE="$TEST_DIR/a clone"
    mkdir -p "$CLONE/launch/demo"
    cp "$MEMRA_ROOT"/launch/*.sh "$CLONE/launch/"
    ln -s "$DEMO" "$CLONE/launch/demo/demo.gguf"
    fake_begin
    # shellcheck disable=SC2016 # for the fake to expand
    fake cmake 'run_cmake "$@"
[[ $* != *--build* ]] || ln -sf "$PP" "$CLONE/build/release/bin/memra-pp"'
}

teardown() {
    memra_teardown
}

# story OUT ARGUMENT..: starts pp-run.sh with a story of 200 tokens; PP_PID.
story() {
    local out=$1
    shift
    set -m
    PATH=$FAKE:/usr/bin setpriv --pdeathsig KILL "$FAKE/bash" "$CLONE/launch/pp-run.sh" --stages 3 \
        --temp 0 -n 200 --log-level warn "$@" >"$out" 2>"$out.err" </dev/null 3>&- 4>&- &
    PP_PID=$!
    set +m
}

@test "a story goes on while its stages are killed; one line on stderr for each death" {
    local stage victim
    story "$TEST_DIR/want"
    end_of "$PP_PID" 30
    [[ $END_CODE == 0 && $(wc -c <"$TEST_DIR/want") -gt 500 ]]

    story "$TEST_DIR/text" --fault "stage=0,at=decode,kind=slow:20,every=1"
    wait_for 10 test -s "$TEST_DIR/text"
    for stage in 0 1 2 0 1 2; do
        victim=$(pid_of_stage "$stage")
        kill -KILL "$victim"
        wait_for 5 pid_has_changed "$stage" "$victim"
    done
    is_alive "$PP_PID" # they died while it told its story
    end_of "$PP_PID" 30
    [[ $END_CODE == 0 ]]
    cmp "$TEST_DIR/want" "$TEST_DIR/text"
    [[ $(wc -l <"$TEST_DIR/text.err") == 6 ]]
    for stage in 0 1 2; do
        [[ $(grep -cE "^memra-pp: warning: stage $stage \(pid [0-9]+, layers [0-9-]+\) was lost .*: killed by SIGKILL; pid [0-9]+ took its place after [0-9.]+ s" "$TEST_DIR/text.err") == 2 ]]
    done
    assert_nothing_left
}
