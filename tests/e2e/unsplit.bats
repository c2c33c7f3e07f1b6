#!/usr/bin/env bats
# The reference placements and walks, as a user asks for them: the same text, and what is refused is
# refused in one line.
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    memra_teardown
}

story() {
    pp run -m "$DEMO" -p "Once upon a time" --temp 0 -n 40 "$@"
    [[ $CODE == 0 && -n $OUT ]] || {
        printf '%s\n' "$ERR" >&2
        return 1
    }
}

@test "unsplit walks, by variable and by flag, give the text of split ones" {
    story --stages 1
    want=$OUT
    for door in BATCH_PP SPEC_PP PRIME_PP; do
        export "MEMRA_$door=0"
        story --stages 3
        [[ $OUT == "$want" ]]
        unset "MEMRA_$door"
    done
    story --stages 8 --batch-pp 0 --prime-pp 0 --spec-pp 0 --draft 4
    [[ $OUT == "$want" ]]
    story --batch-pp 0 --prime-pp 0 # one stage: nothing is split
    [[ $OUT == "$want" ]]
    pp plan -m "$DEMO" --stages 2 --batch-pp 0
    [[ $CODE == 0 ]]
    assert_nothing_left
}

@test "values that break their rule are refused in one line" {
    for door in batch-pp spec-pp prime-pp allow-unsplit-batch; do
        pp run -m "$DEMO" --stages 2 "--$door" 2
        expect_error 2 "--$door=\"2\" is too big; rule: 0 or 1"
    done
}
