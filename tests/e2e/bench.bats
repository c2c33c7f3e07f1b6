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

@test "sessions: a row for each number of stages, bound of a walk and number of sessions" {
    pp bench -m "$DEMO" --sessions 1,4 --stages 1,2 --batch 0,1 -p 24 -n 12 -r 2
    [[ $CODE == 0 ]]
    for row in '1 \| - \| 1 \| all' '1 \| - \| 4 \| all' '1 \| - \| 1 \| <= 1' '1 \| - \| 4 \| <= 1' \
        '2 \| 4 \| 1 \| all' '2 \| 4 \| 4 \| all' '2 \| 4 \| 1 \| <= 1' '2 \| 4 \| 4 \| <= 1'; do
        [[ $(grep -cE "^\| $row \| [0-9.]+ \| [0-9.]+ / [0-9.]+ \|" <<<"$OUT") == 1 ]]
    done
    assert_nothing_left
}

@test "sessions, json: what each waits and what all get agree with each other" {
    pp bench -m "$DEMO" --sessions 6 --stages 3 -p 40 -n 30 -r 2 --json
    [[ $CODE == 0 ]]
    perl -MJSON::PP -e '
        my $o = decode_json(join "", <STDIN>);
        my ($t) = @{$o->{tests}};
        die "tests" unless @{$o->{tests}} == 1 && $t->{sessions} == 6 && $t->{stages} == 3;
        for my $w ($t->{first_ms}, $t->{token_ms}) {
            die "order" unless 0 <= $w->{p50} && $w->{p50} <= $w->{p99} && $w->{p99} <= $w->{max};
        }
        # the last first token comes when all prompts are through; prompts are 6 x 40 tokens
        my $prompt_ms = 6 * 40 * 1000 / $t->{prompt_tokens_per_s}{min};
        die "first" unless $t->{first_ms}{max} <= $prompt_ms * 1.01 && $t->{first_ms}{max} > $prompt_ms / 4;
        # 30 waits of each session are the generation
        my $ms = 30 * 1000 / ($t->{tokens_per_s}{min} / 6);
        die "token" unless $t->{token_ms}{max} <= $ms && $t->{token_ms}{p50} > 0;
        for my $s (@{$t->{generation_stages}}, @{$t->{prompt_stages}}) {
            die "busy" unless $s->{busy} > 0.001 && $s->{busy} + $s->{starved} + $s->{blocked} <= 1.05;
        }
        # each stage but a first one waits for rows
        die "starved" unless $t->{generation_stages}[1]{starved} > 0;
        die "cores" unless $t->{coordinator_cores} > 0;
    ' <<<"$OUT"
}

@test "sessions beside a prompt: waits meanwhile, in times of a chunk" {
    pp bench -m "$DEMO" --sessions 2 --stages 1,2 -p 24 -n 8 -r 1 --beside 160 --prime-chunk 16 --json \
        --fault "stage=all,at=prime,kind=slow:10,every=1"
    [[ $CODE == 0 ]]
    perl -MJSON::PP -e '
        my $o = decode_json(join "", <STDIN>);
        for my $t (@{$o->{tests}}) {
            my $b = $t->{beside};
            die "chunks" unless $b->{prompt} == 160 && $b->{chunks} == 10;
            die "chunk" unless $b->{chunk_ms} >= 10 * $t->{stages};
            die "alone" unless $b->{alone_ms} >= 100 && $b->{prompt_ms} >= 100;
            die "waits" unless $b->{waits} >= 8;
            # a token waits for a chunk at least, now and then
            die "worst" unless $b->{token_ms}{max} >= 10;
            die "ratio" unless abs($b->{worst_chunks} - $b->{token_ms}{max} / $b->{chunk_ms}) < 1e-6;
        }
    ' <<<"$OUT"
    pp bench -m "$DEMO" --sessions 2 -p 24 -n 8 -r 1 --beside 160
    grep -q 'beside: while a prompt of 160 tokens is read' <<<"$OUT"
}

@test "sessions, csv: as many fields in each line" {
    pp bench -m "$DEMO" --sessions 1,2 -p 8 -n 8 -r 1 -o csv
    [[ $CODE == 0 && $(wc -l <<<"$OUT") == 3 ]]
    [[ $(sed 's/[^,]//g' <<<"$OUT" | sort -u | wc -l) == 1 ]]
}

@test "sessions whose KV does not fit: what would" {
    pp bench -m "$DEMO" --sessions 2,8 -p 100 -n 28 --kv-bytes 2000000
    expect_error 4 "at most 5 would fit"
    pp bench -m "$DEMO" --sessions 1024 -p 1 -n 1 --kv-bytes 2000000
    expect_error 4 "not with 2 positions each, at most 10 would fit: --kv-bytes 2000000 makes 10 KV blocks"
    pp bench -m "$DEMO" --sessions 300 -p 1 -n 1 -r 1 # a walk has rows of more sessions than their context has
    [[ $CODE == 0 && $OUT == *"prompts of 1 token that generate 1"* ]]
    pp bench -m "$DEMO" --sessions 5 -p 100 -n 28 --kv-bytes 2000000 -r 1
    [[ $CODE == 0 ]]
}

@test "what cannot be measured is refused before anything starts" {
    local line
    # A context that is too small is no wrong line: as everywhere, exit code 4.
    while read -r line; do
        # shellcheck disable=SC2086 # words
        pp bench -m "$DEMO" $line
        [[ -z $OUT ]]
        expect_error 4 "fit into a context of (64|512).*raise --ctx"
    done <<'END'
-p 100 --ctx 64
-n 100 --ctx 64 -p 0
-n 30 --depth 40 --ctx 64 -p 0
--sessions 4 -p 60 -n 10 --ctx 64
--sessions 2 --beside 600 --ctx 512
END
    while read -r line; do
        # shellcheck disable=SC2086 # words
        pp bench -m "$DEMO" $line
        [[ -z $OUT ]]
        expect_error 2 ""
    done <<'END'
-p 0 -n 0
-p 4294967296
-p -1
-r 0
--stages 0
--stages 1,,2
--stages 1,9
--stages 65
--sessions 0
--sessions 4,0
--sessions 4,,8
--sessions 1025
--sessions many
--sessions 4 -p 0
--sessions 4 -n 0
--sessions 4 --depth 8
--sessions 4 --batch 1,x
--batch 2
--beside 64
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

@test "one number of stages is the doors' too: cuts and faults know it" {
    pp bench -m "$DEMO" --stages 2 --splits 3 --fault stage=1,at=decode,kind=slow:1 -p 8 -n 4 -r 1 -o json
    [[ $CODE == 0 ]]
    pp bench -m "$DEMO" --stages 3 --splits 3 -p 8 -n 4
    [[ $CODE == 2 && $ERR == *'--splits="3" has a wrong number of cuts for --stages="3"'* ]]
    # Of a list, the largest: what the smaller ones have no stage for is not there to be lost.
    pp bench -m "$DEMO" --stages 1,3,2 --fault stage=2,at=decode,kind=slow:1 -p 8 -n 4 -r 1 -o json
    [[ $CODE == 0 && $(grep -c warning: <<<"$ERR") == 0 ]]
    pp bench -m "$DEMO" --stages 1,3,2 --fault stage=3,at=decode,kind=slow:1 -p 8 -n 4
    expect_error 2 '--fault="stage=3,at=decode,kind=slow:1" names stage 3, and --stages asks for 3 at most, which are numbered from 0'
    MEMRA_PP_STAGES=2 pp bench -m "$DEMO" --fault stage=2,kind=kill --sessions 2
    expect_error 2 'names stage 2, and MEMRA_PP_STAGES asks for 2 at most'
}
