#!/usr/bin/env bats
# Models of random weights in memory: planned without being made, measured, gated; and auto cuts
# against every other set of cuts.
load ../support/common
load ../support/faults

setup() {
    memra_setup
}

teardown() {
    memra_teardown
}

SMALL=layers=4,embd=128,ff=256,heads=4,vocab=500

@test "plan --shape: any size at once, nothing allocated, exit 4 where it does not fit" {
    local shape
    for shape in 1b 3b 8b 70b 405b qwen3-4b gemma3-4b; do
        pp plan --shape "$shape" --stages 4 --splits auto --json
        [[ $CODE == 0 || $CODE == 4 ]]
        [[ $OUT == *'"n_stages":4,'* ]]
    done
    pp plan --shape 405b --type f32
    [[ $CODE == 4 && $OUT == "model: llama, 126 layers, 16384 wide, 128256 tokens"* ]]
    expect_error 4 "the run needs [0-9.]+ [MGTP]B and [0-9.]+ [MGT]B are free"
    # A sanitizer needs more address space than any limit.
    if grep -q '^MEMRA_SANITIZE:STRING=.' "$MEMRA_BUILD/CMakeCache.txt"; then return 0; fi
    # No room for a thousandth of the weights.
    bash -c 'ulimit -v 400000 && exec "$@"' - "$PP" plan --shape 405b >"$TEST_DIR/out" 2>&1 || true
    grep -q '^model: llama, 126 layers' "$TEST_DIR/out"
}

@test "bench --shape: the row is that shape's; the file is never on disk" {
    pp bench --shape "$SMALL" --type f16 -p 32 -n 4 -r 1 --stages 1,2 -o csv
    [[ $CODE == 0 && $(wc -l <<<"$OUT") == 5 ]]
    [[ $(grep -c "random $SMALL F16" <<<"$OUT") == 4 ]]
    assert_nothing_left
}

@test "gate --shape: the law holds for it" {
    pp gate ppn --shape "$SMALL" --stages 2 -p 40 -n 2
    [[ $CODE == 0 ]]
    assert_nothing_left
}

@test "shapes that cannot be meant" {
    local line
    while read -r line; do
        # shellcheck disable=SC2086 # words
        pp plan $line
        [[ -z $OUT ]]
        expect_error 2 ""
    done <<'LINES'
--shape 9b
--shape 8b,layers=0
--shape layers=4
--shape 8b,nonsense=1
--shape 8b --type q9
--shape 8b -m x.gguf
--type q8_0
LINES
    pp bench --shape 405b
    expect_error 4 "the run needs"
    pp run --shape 1b
    expect_error 2 "unknown option"
}

# --- auto ---------------------------------------------------------------------------------------

# What the stage that reads most reads in a step, of a plan whose JSON is on stdin: the embedding, of so
# many bytes, is not read.
largest_of() { # EMBEDDING_BYTES
    perl -MJSON::PP -MList::Util=max -e '
        my $s = decode_json(join "", <STDIN>)->{stages};
        $s->[0]{weights_bytes} -= $ARGV[0];
        print max(map { $_->{weights_bytes} } @$s), "\n"' "$1"
}

# auto's largest stage is the least of all sets of two cuts.
auto_is_best() { # LAYERS EMBEDDING_BYTES PLAN_OPTION..
    local n=$1 embedding=$2 a b best='' got
    shift 2
    for ((a = 1; a < n; a++)); do
        for ((b = a + 1; b < n; b++)); do
            got=$("$PP" plan "$@" --stages 3 --splits "$a,$b" --json 2>/dev/null | largest_of "$embedding")
            [[ -n $best ]] && ((best <= got)) || best=$got
        done
    done
    got=$("$PP" plan "$@" --stages 3 --splits auto --json 2>/dev/null | largest_of "$embedding")
    [[ $got == "$best" ]]
}

@test "auto: a vocabulary of 256k, tied and untied" {
    auto_is_best 7 71303168 --shape layers=7,embd=256,ff=4096,heads=4,vocab=262144
    auto_is_best 7 71303168 --shape layers=7,embd=256,ff=8192,heads=4,vocab=262144,tied=1
}

# A llama header whose layers have the given types (GGUF numbers), data left as a hole.
uneven_model() {
    perl -e '
        my ($path, @types) = @ARGV;
        my %block = (0 => [1, 4], 2 => [32, 18], 8 => [32, 34]);
        my ($at, $n, $dir, $keys, $n_keys) = (0, 0, "", "", 0);
        my $text = sub { pack("Q<", length $_[0]) . $_[0] };
        my $tensor = sub {
            my ($name, $type, @dim) = @_;
            my $values = 1;
            $values *= $_ for @dim;
            $dir .= $text->($name) . pack("L<Q<*", scalar @dim, @dim) . pack("L<Q<", $type, $at);
            my $bytes = $values / $block{$type}[0] * $block{$type}[1];
            $at += int(($bytes + 31) / 32) * 32;
            $n++;
        };
        my %u32 = (block_count => scalar @types, context_length => 128, embedding_length => 64,
            feed_forward_length => 512, "attention.head_count" => 2);
        $keys .= $text->("general.architecture") . pack("L<", 8) . $text->("llama");
        $keys .= $text->("llama.$_") . pack("L<L<", 4, $u32{$_}) for sort keys %u32;
        $keys .= $text->("llama.attention.layer_norm_rms_epsilon") . pack("L<f<", 6, 1e-5);
        $tensor->("token_embd.weight", 8, 64, 320);
        $tensor->("output_norm.weight", 0, 64);
        for my $i (0 .. $#types) {
            my $b = "blk.$i.";
            $tensor->("${b}${_}_norm.weight", 0, 64) for qw(attn ffn);
            $tensor->("${b}attn_$_.weight", $types[$i], 64, 64) for qw(q k v output);
            $tensor->("${b}ffn_$_.weight", $types[$i], 64, 512) for qw(gate up);
            $tensor->("${b}ffn_down.weight", $types[$i], 512, 64);
        }
        my $head = "GGUF" . pack("L<Q<Q<", 3, $n, 2 + keys %u32) . $keys . $dir;
        $head .= "\0" x (-length($head) % 32);
        open my $f, ">", $path or die;
        print $f $head;
        truncate $f, length($head) + $at or die;
    ' "$@"
}

@test "auto: layers of 1:7, large ones together, apart and last" {
    local order
    for order in "0 0 0 2 2 2 2 2" "2 0 2 0 2 0 2 0" "2 2 2 2 2 2 0 0"; do
        # shellcheck disable=SC2086 # a word for each layer
        uneven_model "$TEST_DIR/m.gguf" $order
        auto_is_best 8 21760 -m "$TEST_DIR/m.gguf"
    done
}

@test "auto: stages that share a device get less each" {
    "$PP" devices --json | grep -q '"cpu:1"' || skip "one NUMA node"
    pp plan --shape "layers=12,embd=128,ff=256,heads=4,vocab=320" --stages 3 --splits auto \
        --devices cpu:0,cpu:0,cpu:1 --json
    perl -MJSON::PP -e '
        my @f = @{decode_json(join "", <STDIN>)->{fence}};
        die "@f" unless $f[3] - $f[2] > $f[1] - $f[0]' <<<"$OUT"
}
