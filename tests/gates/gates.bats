#!/usr/bin/env bats
# The gates of memra-pp on the demo model: green, and red when something is broken on purpose. A gate
# that stays green over its canaries, or whose counters stand still, is a failure here.
load ../support/common
load ../support/faults

setup() {
    memra_setup
    load_pids=()
}

teardown() {
    ((${#load_pids[@]} == 0)) || kill "${load_pids[@]}" 2>/dev/null || true
    memra_teardown
}

# gate ARGUMENT..: OUT and ERR are what it wrote, CODE its exit code.
gate() {
    CODE=0
    "$PP" gate "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || CODE=$?
    OUT=$(<"$TEST_DIR/out")
    ERR=$(<"$TEST_DIR/err")
}

show() {
    printf '%s\nexit code %s\n%s\n' "$OUT" "$CODE" "$ERR" >&2
}

# expect CODE PATTERN..: the exit code, and lines (of both streams) that match each pattern.
expect() {
    local code=$1 pattern
    shift
    [[ $CODE == "$code" ]] || {
        show
        return 1
    }
    for pattern; do
        grep -qE -- "$pattern" <<<"$OUT"$'\n'"$ERR" || {
            printf 'no line matches: %s\n' "$pattern" >&2
            show
            return 1
        }
    done
}

no_line() {
    ! grep -E -- "$1" <<<"$OUT" >&2
}

# json FIELD: of the last line, which must be an object, as every other line.
json() {
    perl -MJSON::PP -e '
        my $o;
        while (<STDIN>) { $o = decode_json($_) }
        my $v = $o->{$ARGV[0]};
        print JSON::PP::is_bool($v) ? ($v ? "true" : "false") : $v' "$1" <<<"$OUT"
}

@test "ppn: every kind of arm agrees with one stage, and stages met" {
    gate ppn --json -m "$DEMO" --stages 2
    expect 0
    [[ $(json verdict) == green && $(json red) == 0 ]]
    # 8 layers can be cut in two in 7 ways, with five arms each; two arms have one stage
    (($(json arms) == 37 && $(json crossings) > 900 && $(json overlaps) > 10))
    for arm in reference serial pipelined flipped rounds "one stream"; do
        grep -q "\"arm\":\"$arm\",\"stages\":[1-9]" <<<"$OUT"
    done
    assert_nothing_left
}

@test "ppn: a stage for every layer, and even cuts of a model that is not small" {
    gate ppn -m "$DEMO" -p 48 -n 2
    expect 0 "^ok .* N=8 cuts 1,2,3,4,5,6,7 flipped" "^ok .* N=2 cuts 7 serial" "^# green"
    no_line "^not ok"
}

@test "prime: any chunk lengths, forks and truncations agree with one piece" {
    gate prime --json -m "$DEMO" --stages 3
    expect 0
    [[ $(json verdict) == green ]]
    (($(json arms) >= 30 && $(json chunks) > 1000 && $(json overlaps) > 10))
    for arm in "chunks of 1, serial" "chunks of 65, overlapped" "one piece, serial" \
        "odd pieces, overlapped" "fork and truncate, serial"; do
        grep -q "\"arm\":\"$arm\",\"stages\":3" <<<"$OUT"
    done
}

@test "batch: sessions among others agree with themselves alone" {
    gate batch --json -m "$DEMO"
    expect 0
    [[ $(json verdict) == green ]]
    # the reference, two arms of one stage, and five arms each of 2, 3 and 8 stages
    [[ $(json arms) == 18 ]]
    ! grep -E '"(batches|prompt_batches|rounds)":0,' <<<"$(grep '"arm":"together' <<<"$OUT")"
    [[ $(grep -c '"arm":"sharing prefixes"' <<<"$OUT") == 4 ]]
    ! grep -E '"(batches|rounds|shared_rows)":0[,}]' <<<"$(grep '"arm":"sharing' <<<"$OUT")"
    grep -q '"arm":"together, one slot","stages":8' <<<"$OUT"
    ! grep '"rounds_ahead":0,' <<<"$(grep -E '"arm":"(together|sharing prefixes)","stages":[^1]' <<<"$OUT")"
    [[ $(grep -c '"rounds_ahead":0,' <<<"$(grep '"arm":"together, by hosts"' <<<"$OUT")") == 3 ]]
    assert_nothing_left
}

@test "spec: drafts that are verified give what plain decode gives" {
    gate spec --json -m "$DEMO"
    expect 0
    [[ $(json verdict) == green ]]
    # the reference, eleven arms of one stage and twelve each of 2, 3 and 8
    [[ $(json arms) == 48 ]]
    ! grep -E '"(verify_steps|drafted|accepted)":0,' <<<"$(grep '"arm":"K=' <<<"$OUT")"
    for arm in "K=1, greedy" "K=2, sampled" "K=8, sampled" "K=4, together" "K=4, by a model" \
        "K=4, by a model that is killed"; do
        grep -q "\"arm\":\"$arm\",\"stages\":8" <<<"$OUT"
    done
    assert_nothing_left
}

@test "the arms of prime, batch and spec that walk unsplit do, and no other does" {
    for name in prime batch spec; do
        gate "$name" --json -m "$DEMO" --stages 3
        expect 0
        [[ $(json verdict) == green ]]
        grep -q '"arm":"[^"]*unsplit[^"]*","stages":3' <<<"$OUT"
        ! grep '"arm":"[^"]*unsplit' <<<"$OUT" | grep '"unsplit_steps":0}'
        ! grep '"arm":' <<<"$OUT" | grep -vE '"arm":"[^"]*unsplit' | grep -v '"unsplit_steps":0}'
    done
    # the doors of the command are the gate's to flip
    MEMRA_BATCH_PP=0 gate ppn -m "$DEMO" --stages 2 --splits 4 -p 40 -n 2
    expect 0 "^# green"
    assert_nothing_left
}

@test "with all weights on stage 0 nothing differs either" {
    gate ppn -m "$DEMO" --stages 3 --splits 2,4 --shard 0
    expect 0 "^ok .* N=3 cuts 2,4 pipelined" "^# green"
    gate prime -m "$DEMO" --stages 2 --shard 0 -p 60
    expect 0 "^ok .*unsplit: .*unsplit steps" "^# green"
    assert_nothing_left
}

@test "with all weights on stage 0 lost stages are replaced too, over the cuts that were named" {
    gate recovery -m "$DEMO" --stages 3 --splits 1,6 --kills 6 --seed 3 --shard 0
    expect 0 "^ok 1 - recovery N=3 cuts 1,6 .*6 kills: .* equal"
    assert_nothing_left
}

@test "ppn alone can be walked on one stream" {
    MEMRA_PP_STREAMS=0 gate ppn -m "$DEMO" --stages 4 --splits auto
    expect 0 "^ok .* N=4 cuts .* one stream: " "^1\\.\\.3$" "^# green"
    for name in prime all; do
        gate "$name" -m "$DEMO" --stages 2 --streams 0
        expect 2 "error: --streams=0 puts all stages into one process, and only gate ppn"
    done
    assert_nothing_left
}

@test "transport: every edge in both slots, probed and used" {
    gate transport --json -m "$DEMO"
    expect 0
    [[ $(json verdict) == green ]]
    # 2, 3 and 8 stages, by auto and by shm: 8 probes for each edge
    [[ $(json probes) == $((2 * 8 * (2 + 3 + 8))) ]]
}

@test "every set of cuts of a small model" {
    require_shared models/stories260K/stories260K-f32.gguf
    gate ppn -m "$SHARED/models/stories260K/stories260K-f32.gguf"
    # 5 layers have 15 sets of cuts, with five arms each; two arms have one stage
    expect 0 "^1\.\.77$" "^ok .* N=5 cuts 1,2,3,4 flipped" "^# green"
    no_line "^not ok"
}

# p50_at_most SERIES MS: what the last gate measured of it.
p50_at_most() {
    perl -ne '$ms = $1 if /^# N=\d+ '"$1"': p50 ([-0-9.]+) ms/; END { exit !defined $ms || $ms > '"$2"' }' \
        <<<"$OUT" || {
        printf 'not p50 of "%s" within %s ms:\n%s\n' "$1" "$2" "$OUT" >&2
        return 1
    }
}

# killed JOURNAL_BYTES: the recovery gate with that bound. Each test its own: under ThreadSanitizer half a
# minute is what the undisturbed run takes, and a loss some seconds.
killed() {
    local kills=8
    ! built_with thread || kills=4
    gate recovery -m "$DEMO" --stages 3 --kills "$kills" --seed 27 --journal-bytes "$1"
    expect 0 "^ok 1 - recovery N=3 .* $kills kills: .* equal" "^# N=3 kill to resume: p50" \
        "^# N=3 lost: [1-9] by SIGKILL, 1 by SIGSTOP, 1 hung; .* [1-9] while prompts .* [1-9] while drafts" \
        "^# N=3 noticed beyond the deadline .*: p50" \
        'SIGKILL; pid [0-9]+ took its place'
    p50_at_most "end of process to noticed" 20 # 10 wanted, on a machine that is not busy
    p50_at_most "noticed beyond the deadline .stopped, hung." 250 # likewise 100
    [[ $(grep -cE 'took its place|once more' <<<"$ERR") -ge $kills ]]
    assert_nothing_left
}

@test "recovery: killed stages are replaced from journals, and no bit changes" {
    killed 18446744073709551615
}

@test "recovery: killed stages are replaced from tokens, and no bit changes" {
    killed 0
    grep -q 'rows again through all stages' <<<"$ERR"
}

@test "the canaries of every gate are noticed" {
    gate all -m "$DEMO" --canary
    expect 1 "^red: .*all 43 canaries were noticed"
    no_line "^GREEN"
    [[ $(grep -c "^red   " <<<"$OUT") == 43 ]]
    assert_nothing_left
}

# What one device alone can do is left out, by name; the others go on.
@test "the canaries of stages on two devices are noticed" {
    gate all -m "$DEMO" --canary --stages 2 --devices cpu,cpu:0
    expect 1 "^red: .*all [0-9]+ canaries were noticed"
    no_line "^GREEN"
    [[ $(grep -c "left out: MEMRA_PP_STREAMS=0" <<<"$OUT") == 1 ]]
    assert_nothing_left
}

# Twice as many busy loops as processors, until the test ends.
busy() {
    local i
    for ((i = 0; i < 2 * $(nproc); i++)); do
        (while :; do :; done) 3>&- 4>&- &
        load_pids+=($!)
    done
}

@test "ppn is green under load" {
    busy
    gate ppn -m "$DEMO" --stages 3 --splits 2,5 -p 96
    expect 0 "^# green"
}

@test "prime is green under load" {
    busy
    gate prime -m "$DEMO" --stages 2 -p 70 -n 2
    expect 0 "^# green"
}

@test "batch is green under load" {
    busy
    gate batch -m "$DEMO" --stages 3 -p 70 -n 2
    expect 0 "^# green"
}

@test "spec is green under load" {
    busy
    gate spec -m "$DEMO" --stages 3 -p 70 -n 2
    expect 0 "^# green"
}

@test "transport is green under load" {
    busy
    gate transport -m "$DEMO" --stages 2 -p 96
    expect 0 "^# green"
}

@test "a fault from the door makes the arms red, not their reference" {
    gate ppn -m "$DEMO" --stages 2 --splits 3 --fault stage=0,at=decode,kind=corrupt
    expect 1 "^ok 1 - ppn N=1 reference" "^not ok .*row 288 column [0-9]+ is .*0x[0-9a-f]{8}.*differ" \
        "^# red: ppn: 2 of 7 arms"
    gate ppn -m "$DEMO" --stages 2 --splits 3 --fault stage=1,at=decode,kind=kill
    expect 1 "^not ok .*stage 1 .*SIGKILL"
    gate transport -m "$DEMO" --stages 2 --fault stage=0,at=load,kind=corrupt
    expect 1 "^not ok .*byte probe of boundary 0 -> 1 failed: slot 0, 1 rows"
    assert_nothing_left
}

@test "the doors choose the pipelines" {
    gate ppn -m "$DEMO" -p 48 -n 2 --stages 7
    # 7 of 8 layers' cuts are chosen in 7 ways
    expect 0 "^1\.\.37$"
    gate ppn -m "$DEMO" -p 48 -n 2 --stages 3 --splits auto
    expect 0 "^1\.\.7$"
    MEMRA_PP_STAGES=2 MEMRA_PP_SPLIT=7 gate ppn -m "$DEMO" -p 48 -n 2
    expect 0 "^ok .* N=2 cuts 7 serial" "^1\.\.7$"
    gate transport -m "$DEMO" -p 48 --stages 2 --transport shm
    expect 0 "^1\.\.3$"
}

@test "what cannot be meant is refused in one line" {
    local line
    while read -r code line; do
        # shellcheck disable=SC2086 # words
        gate $line
        expect "$code" "memra-pp: error: "
        [[ -z $OUT && $(wc -l <<<"$ERR") == 1 ]] || {
            show
            return 1
        }
    done <<END
2
2 ppn prime
2 sepc
2 ppn -m $DEMO -p 23
2 ppn -m $DEMO -p 4001
2 ppn -m $DEMO -n 0
4 ppn -m $DEMO -p 500 --ctx 128
4 ppn -m $DEMO --ctx 20
2 ppn -m $DEMO --stages 9
2 ppn -m $DEMO -p 24 -n 1 --stages 1
2 all -m $DEMO -p 24 -n 1 --stages 0
2 prime -m $DEMO --stages 9
2 transport -m $DEMO --stages 3 --splits 4,8
3 ppn -m $TEST_DIR/none.gguf
END
}

@test "Ctrl-C ends a gate within a second and leaves nothing" {
    start_pp "$TEST_DIR/out" gate all -m "$DEMO" --stages 3
    wait_for 60 grep -q "^ok 5 " "$TEST_DIR/out"
    kill -INT -- "-$PP_PID"
    end_within 1500
    [[ $END_CODE == 130 ]]
    assert_nothing_left
}
