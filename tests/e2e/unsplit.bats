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

@test "all weights on stage 0: the same text, and plan, banner and status say so" {
    story --stages 1
    want=$OUT
    MEMRA_PP_SHARD=0 story --stages 3
    [[ $OUT == "$want" ]]
    grep -q "stage 2: .* weights 0 bytes" <<<"$ERR"
    grep -q "all weights lie on the device of stage 0" <<<"$ERR"
    story --stages 4 --shard 0 --prime-pp 0 --batch-pp 0
    [[ $OUT == "$want" ]]
    pp plan -m "$DEMO" --stages 3 --shard 0
    [[ $CODE == 0 ]]
    grep -q "^all weights lie on the device of stage 0" <<<"$OUT"
    grep -qE "^2 +5-7 +cpu +0\.0 MB" <<<"$OUT"
    pp plan -m "$DEMO" --stages 3 --shard 0 --json
    perl -MJSON::PP -0777 -ne '
        my $p = decode_json($_);
        die "sharded" if $p->{sharded};
        my @bytes = map { $_->{weights_bytes} } @{$p->{stages}};
        die "bytes @bytes" unless $bytes[0] == $p->{weights_total_bytes} && $bytes[1] + $bytes[2] == 0' \
        <<<"$OUT"
    start_pp "$TEST_DIR/long" run -m "$DEMO" -p "Once upon a time" -n -1 --temp 0 --stages 2 --shard 0 \
        --fault "stage=1,at=decode,kind=slow:200,every=1"
    wait_for 10 status_has '"sharded":false'
    "$PP" status "$PP_PID" | grep -q "all weights lie on the device of stage 0"
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    [[ $END_CODE == 130 ]]
    assert_nothing_left
}

@test "one stream: one process holds all stages, and the text is the same" {
    story --stages 1
    want=$OUT
    MEMRA_PP_STREAMS=0 story --stages 3
    [[ $OUT == "$want" ]]
    grep -q "boundaries: 0 -> 1 copy (stream), 1 -> 2 copy (stream)" <<<"$ERR"
    story --stages 8 --streams 0 --shard 0 --batch-pp 0 --draft 3
    [[ $OUT == "$want" ]]
    story --stages 3 --streams 0 --trace "$TEST_DIR/trace"
    [[ $OUT == "$want" ]]
    grep -q '"name":"prompt"' "$TEST_DIR/trace"
    story --stages 3 --streams 0 --fault "stage=0,at=decode,kind=kill"
    [[ $OUT == "$want" ]]
    grep -q "stage 0 (pid [0-9]*, layers 0-7) was lost in a step: killed by SIGKILL; pid" <<<"$ERR"
    pp plan -m "$DEMO" --stages 2 --streams 0
    grep -q "^all stages are in one process" <<<"$OUT"
    grep -q "^boundary 0 -> 1: copy (stream)" <<<"$OUT"
    start_pp "$TEST_DIR/long" run -m "$DEMO" -p "Once upon a time" -n -1 --temp 0 --stages 3 --streams 0 \
        --fault "stage=0,at=decode,kind=slow:200,every=1"
    wait_for 10 status_has '"one_process":true'
    has_stages "$PP_PID" 1
    [[ $("$PP" status "$PP_PID" | grep -cE "^[0-9] > [0-9] +copy") == 2 ]]
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    assert_nothing_left
}

@test "what cannot be on one stream is refused" {
    pp run -m "$DEMO" --stages 2 --streams 0 --transport shm
    expect_error 2 '--transport="shm" forces what nothing crosses with --streams="0"'
    pp run -m "$DEMO" --stages 2 --streams 0 --signal spin
    expect_error 2 '--signal="spin" forces what nobody waits for with --streams="0"'
}

@test "values that break their rule are refused in one line" {
    for door in batch-pp spec-pp prime-pp allow-unsplit-batch shard streams; do
        pp run -m "$DEMO" --stages 2 "--$door" 2
        expect_error 2 "--$door=\"2\" is too big; rule: 0 or 1"
    done
}
