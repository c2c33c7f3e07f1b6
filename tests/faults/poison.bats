#!/usr/bin/env bats
# NaN in a row: the session that it is in ends with one line, and nothing else does.
bats_require_minimum_version 1.5.0
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    memra_teardown
}

@test "run: the text so far, one line that names stage, layers and a way out, exit code 7" {
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 60
    [[ $CODE == 0 ]]
    local whole=$OUT at stage layers=('0-1' '2-4' '5-7')
    for at in prime decode; do
        for stage in 0 1 2; do
            pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 60 \
                --fault "stage=$stage,at=$at,kind=nan"
            expect_error 7 "session 1 was ended: NaN or infinity in the hidden state at position [0-9]+, found by stage $stage \(pid [0-9]+, layers ${layers[$stage]}\); --fault asks for it"
            [[ $whole == "$OUT"* ]]
        done
    done
    assert_nothing_left
}

@test "run -i ends with that line too, and one stage alone finds it" {
    printf 'Once\nmore\n' >"$TEST_DIR/lines"
    CODE=0
    "$PP" run -i -m "$DEMO" --temp 0 --fault "stage=0,at=decode,kind=nan" \
        <"$TEST_DIR/lines" >"$TEST_DIR/out" 2>"$TEST_DIR/err" || CODE=$?
    expect_error 7 "found by stage 0 \(pid [0-9]+, layers 0-7\)" "$TEST_DIR/err"
    assert_nothing_left
}

@test "a NaN of its replay ends a session after its stage was replaced" {
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 --stages 3 -n 60 \
        --fault "stage=1,at=decode,kind=kill;stage=1,at=recovery,kind=nan"
    expect_error 7 "found by stage 1 "
    grep -q 'took its place' <<<"$ERR"
    assert_nothing_left
}
