#!/usr/bin/env bats
# bench: what it measures is there and consistent in all three forms, and bad wishes are refused before
# anything starts. How fast it is, is not judged here.
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    memra_teardown
}

@test "md: the bandwidth, and a row per test and number of stages" {
    pp bench -m "$DEMO" -p 96 -n 16 --stages 1,3 -r 2
    [[ $CODE == 0 ]]
    grep -qE '^read bandwidth of this machine: [0-9.]+ GB/s \([0-9]+ threads?, [0-9]+ MB' <<<"$OUT"
    for row in '1 \| - \| F16 \| pp96' '1 \| - \| F16 \| tg16' \
        '3 \| 2,5 \| F16 \| pp96' '3 \| 2,5 \| F16 \| tg16'; do
        grep -qE "^\| demo.gguf \| $row \| [0-9.]+ ± [0-9.]+ \|" <<<"$OUT"
    done
    assert_nothing_left
}

@test "json: tokens/s, bytes per token and share agree with each other" {
    pp bench -m "$DEMO" -p 0 -n 24 --depth 40 --kv-type f32 -r 3 -o json
    [[ $CODE == 0 ]]
    perl -MJSON::PP -e '
        my $o = decode_json(join "", <STDIN>);
        my ($t) = @{$o->{tests}};
        die "tests" unless @{$o->{tests}} == 1 && $t->{test} eq "tg" && $t->{depth} == 40;
        die "order" unless $t->{tokens_per_s_min} <= $t->{tokens_per_s_median}
            && $t->{tokens_per_s_median} <= $t->{tokens_per_s_max};
        my $share = $t->{tokens_per_s_mean} * $t->{bytes_per_token}
            / $o->{read_bandwidth}{bytes_per_s};
        die "share" unless abs($share - $t->{share}) < 1e-6 * $share;
        # a row of f32 K and V at the mean position 51.5 lies above the weights
        die "bytes" unless $t->{bytes_per_token} > $o->{weights_bytes} / 2;
        die "busy" unless $t->{busy}[0] > 0 && $t->{busy}[0] <= 1.01;
    ' <<<"$OUT"
}

@test "csv: a head and a line per test, as many fields in each" {
    pp bench -m "$DEMO" -p 32 -n 8 -r 1 --stages 2 -o csv
    [[ $CODE == 0 && $(wc -l <<<"$OUT") == 3 ]]
    # the device's name has a comma of its own, in quotes
    [[ $(sed 's/"[^"]*"/x/g; s/[^,]//g' <<<"$OUT" | sort -u | wc -l) == 1 ]]
}

@test "--stages is a list of its own beside the doors" {
    MEMRA_PP_STAGES=3 MEMRA_PP_SPLITS=1,7 pp bench -m "$DEMO" -p 32 -n 0 -r 1
    grep -q '| 3 | 1,7 |' <<<"$OUT"
    MEMRA_PP_STAGES=3 MEMRA_PP_SPLITS=1,7 pp bench -m "$DEMO" -p 32 -n 0 -r 1 --stages 3,2
    [[ $CODE == 0 ]]
    grep -q '| 3 | 1,7 |' <<<"$OUT"
    grep -q '| 2 | 4 |' <<<"$OUT"
}

@test "what cannot be measured is refused before anything starts" {
    local line
    while read -r line; do
        # shellcheck disable=SC2086 # words
        pp bench -m "$DEMO" $line
        [[ -z $OUT ]]
        expect_error 2 ""
    done <<'END'
-p 0 -n 0
-p 100 --ctx 64
-n 100 --ctx 64 -p 0
-n 30 --depth 40 --ctx 64 -p 0
-p 4294967296
-p -1
-r 0
--stages 0
--stages 1,,2
--stages 1,9
--stages 65
-o xml
END
    pp bench -m "$TEST_DIR/none.gguf"
    expect_error 3 "none.gguf"
}

@test "Ctrl-C ends it within a second and leaves nothing" {
    start_pp "$TEST_DIR/out" bench -m "$DEMO" -p 256 -n 256 -r 1000 --stages 2
    wait_for 40 grep -q '^|---' "$TEST_DIR/out"
    kill -INT -- "-$PP_PID"
    end_within 1500
    [[ $END_CODE == 130 ]]
    assert_nothing_left
}
