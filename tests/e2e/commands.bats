#!/usr/bin/env bats
# commands.bats - the commands as a person uses them, on the demo model: run, plan, logits, tokenize,
# status, devices. Every case of bad input has the exit code and one line; nothing is left behind.

# shellcheck disable=SC2016 # Perl in single quotes
load ../support/common
load ../support/commands

setup() { memra_setup; }
teardown() { memra_teardown; }

@test "without arguments: help to stderr and 2; an unknown command is named with the list" {
    run_pp
    [[ $status == 2 && -z $output ]]
    grep -q '^usage: memra-pp' "$TEST_DIR/err"
    refused 2 "no command 'frob'; there are: run, plan, logits, tokenize, gate, bench" frob
    run_pp --help
    [[ $status == 0 && $output == 'usage: memra-pp'* ]]
    run_pp --version
    [[ $status == 0 && $output =~ ^memra-pp\ [0-9.]+\ build\ [0-9a-f]+,\ backends:\ cpu ]]
}

@test "every command has a complete --help, whatever else is wrong" {
    local command
    for command in run plan logits tokenize gate bench status devices; do
        MEMRA_PP_STAGES=x run_pp "$command" --help
        [[ $status == 0 && ! -s $TEST_DIR/err ]]
        grep -q "^usage: memra-pp $command" "$TEST_DIR/out"
        grep -q 'MEMRA_PP_STAGES' "$TEST_DIR/out"
        grep -q -- '--kv-type TYPE *type of the KV cache.*Default: f16' "$TEST_DIR/out"
        grep -q '^Exit codes: 0 done' "$TEST_DIR/out"
        tr '\n' ' ' <"$TEST_DIR/out" | tr -s ' ' | grep -qF 'every=1: whenever it fits, left out: once per run'
        fails grep -nE '^.{101}' "$TEST_DIR/out"
    done
}

@test "run: the prompt and its continuation, the same for every number of stages" {
    local n
    run_pp run -p "Once upon a time" -n 40 --temp 0
    [[ $status == 0 && $output == "Once upon a time"?* ]]
    grep -q '^memra-pp: stage 0: layers 0-[0-9]*, cpu .*, weights .* MB, kv ' "$TEST_DIR/err"
    grep -qE 'prompt: [0-9]+ tokens, [0-9.]+ tokens/s; generated: 40 tokens.*stop: limit.*stage 0' \
        "$TEST_DIR/err"
    cp "$TEST_DIR/out" "$TEST_DIR/one"
    for n in 2 3; do
        MEMRA_PP_STAGES=$n run_pp run -p "Once upon a time" -n 40 --temp 0
        [[ $status == 0 ]]
        [[ $(grep -c '^memra-pp: stage [0-9]*: layer' "$TEST_DIR/err") == "$n" ]]
        cmp "$TEST_DIR/one" "$TEST_DIR/out"
    done
    assert_nothing_left
}

@test "run: sampling is a function of the seed, and of nothing else" {
    run_pp run -p "Once" -n 40 --log-level warn
    cp "$TEST_DIR/out" "$TEST_DIR/default"
    [[ ! -s $TEST_DIR/err ]]
    run_pp run -p "Once" -n 40 --seed 0 --stages 2 --temp 0.8 --top-k 40 --top-p 0.95 --min-p 0.05
    cmp "$TEST_DIR/default" "$TEST_DIR/out"
    run_pp run -p "Once" -n 40 --seed 1
    fails cmp -s "$TEST_DIR/default" "$TEST_DIR/out"
}

@test "run: characters stay whole, whatever tokens make them up and wherever the text is cut" {
    local n
    # Nearly all tokens are as likely as any other: byte tokens in every order.
    local wild=(--temp 1000 --top-k 0 --top-p 1 --min-p 0 --seed 7 --stages 2)
    for n in 1 2 3 17 120; do
        run_pp run -n "$n" "${wild[@]}" --log-level warn
        [[ $status == 0 ]]
        iconv -f UTF-8 -t UTF-8 "$TEST_DIR/out" >/dev/null
        cp "$TEST_DIR/out" "$TEST_DIR/text"
        run_pp run -n "$n" "${wild[@]}" --json
        [[ $status == 0 ]]
        json_ok "$TEST_DIR/out" 'print map { $_->{text} } @v' >"$TEST_DIR/joined"
        [[ -z $(tail -c 1 "$TEST_DIR/joined") ]] || echo >>"$TEST_DIR/joined"
        cmp "$TEST_DIR/joined" "$TEST_DIR/text"
    done
    json_ok "$TEST_DIR/out" 'grep { $_->{text} =~ /\x{fffd}/ } @v' # it did meet such bytes
}

@test "run -n: 0, 1, -1, huge, and what is none" {
    local n
    run_pp run -p "Once" -n 0
    [[ $status == 0 && ! -s $TEST_DIR/out ]]
    run_pp run -p "Once" -n 0 --json
    json_ok "$TEST_DIR/out" '@v == 1 && $l->{stop} eq "limit" && $l->{n_generated} == 0'
    run_pp run -p "Once" -n 1 --temp 0 --json
    json_ok "$TEST_DIR/out" '@v == 2 && $l->{n_generated} == 1'
    for n in -1 1000000000000000000 2147483648 9223372036854775807; do
        run_pp run -p "Once upon a time" -n "$n" --ctx 16 --temp 0 --json
        [[ $status == 0 ]]
        json_ok "$TEST_DIR/out" '$l->{stop} eq "length"'
        json_ok "$TEST_DIR/out" '$l->{n_prompt} + $l->{n_generated} == 17'
    done
    for n in -2 1.5 5x '' ' 5' +5 0x5 1e3 99999999999999999999; do
        refused 2 '^memra-pp: error: -n=.*; rule: a whole decimal number, -1 or more' run -p x -n "$n"
    done
    refused 2 '-n needs a value' run -n
}

@test "run: the end of the context says length, a longer prompt is refused with both numbers" {
    local n
    n=$("$PP" tokenize -p "Once upon a time" | wc -w)
    run_pp run -p "Once upon a time" -n 9 --temp 0 --json --ctx "$n"
    [[ $status == 0 ]]
    json_ok "$TEST_DIR/out" '$l->{stop} eq "length" && $l->{n_generated} == 1'
    run_pp run -p "Once upon a time" -n 9 --temp 0 --json --ctx $((n + 1))
    json_ok "$TEST_DIR/out" '$l->{stop} eq "length" && $l->{n_generated} == 2'
    run_pp run -p "Once upon a time" -n 2 --temp 0 --json --ctx $((n + 1))
    json_ok "$TEST_DIR/out" '$l->{stop} eq "limit" && $l->{n_generated} == 2'
    refused 4 "the prompt has $n tokens and the context $((n - 1)) positions" \
        run -p "Once upon a time" --ctx $((n - 1))
    yes 'Once upon a time' | head -c 20000 >"$TEST_DIR/long"
    refused 4 'the prompt has [0-9]+ tokens and the context' run -f "$TEST_DIR/long"
    assert_nothing_left
}

@test "run: prompts of any bytes: empty, NUL, invalid UTF-8, from a file, a pipe, standard input" {
    run_pp run -n 8 --temp 0 --json
    [[ $status == 0 ]]
    json_ok "$TEST_DIR/out" '$l->{n_prompt} == 1'
    : >"$TEST_DIR/empty"
    run_pp run -f "$TEST_DIR/empty" -n 8 --temp 0 --json
    json_ok "$TEST_DIR/out" '$l->{n_prompt} == 1'
    printf 'a\0b' >"$TEST_DIR/nul"
    run_pp run -f "$TEST_DIR/nul" -n 1 --temp 0
    [[ $status == 0 && $(head -c 3 "$TEST_DIR/out" | od -An -tx1 | tr -d ' ') == 610062 ]]
    # One U+FFFD for each malformed piece; the text that comes out is well-formed.
    run_pp run -p $'bad \xff\xe2\x82 x' -n 4 --temp 0
    [[ $status == 0 && $output == $'bad \xef\xbf\xbd\xef\xbf\xbd x'* ]]
    iconv -f UTF-8 -t UTF-8 "$TEST_DIR/out" >/dev/null
    printf 'Once upon' >"$TEST_DIR/text"
    run_pp run -f "$TEST_DIR/text" -n 4 --temp 0
    cp "$TEST_DIR/out" "$TEST_DIR/want"
    "$PP" run -f - -n 4 --temp 0 --log-level warn <"$TEST_DIR/text" | cmp - "$TEST_DIR/want"
    "$PP" run -f <(cat "$TEST_DIR/text") -n 4 --temp 0 --log-level warn | cmp - "$TEST_DIR/want"
    refused 2 '/dev/zero is longer than the [0-9]+ bytes allowed' run -f /dev/zero
    refused 4 'cannot be read: Is a directory' run -f "$TEST_DIR"
    refused 4 'cannot be read: No such file' run -f "$TEST_DIR/none"
    refused 2 'both give the prompt' run -p x -f "$TEST_DIR/text"
}

@test "a model's name where a file is meant: the line says where names are known" {
    local line
    cd "$TEST_DIR"
    for line in 'run -p x' plan bench 'gate ppn' 'tokenize -p x' 'logits --tokens 1 -o -'; do
        # shellcheck disable=SC2086 # words
        refused 3 '^memra-pp: error: smollm3: No such file, and a GGUF file is meant.* launch/get-model.sh --help lists' \
            $line -m smollm3
        # shellcheck disable=SC2086
        refused 3 'smollm3.gguf: .*No such file' $line -m smollm3.gguf
    done
    refused 3 '^memra-pp: error: --draft-model: smollm3: No such file' run -p x -m "$DEMO" --draft-model smollm3
}

@test "run: options and doors that cannot be meant" {
    refused 2 '^memra-pp: error: --temp="nan"' run --temp nan
    refused 2 '--temp="-1" is out of range' run --temp -1
    refused 2 '--top-p="0" is out of range; rule: a decimal number over 0, at most 1' run --top-p 0
    refused 2 '--top-k="-1"' run --top-k -1
    refused 2 '--min-p="2" is out of range' run --min-p 2
    refused 2 '--min-p="1" is out of range; rule: a decimal number from 0, under 1' run --min-p 1
    refused 2 '--repetition-penalty="0" is out of range; rule: .* over 0, at most 1000' run --repetition-penalty 0
    refused 2 '--frequency-penalty="1001" is out of range; rule: .* from -1000 to 1000' run --frequency-penalty 1001
    refused 2 '--penalty-last-n="257" is out of range; rule: .* from 0 to 256' run --penalty-last-n 257
    refused 2 '--draft="17" is out of range' run --draft 17
    refused 2 '--sessions="1,0" is no such list; rule: at most [0-9]+ numbers from 1 to 1024' bench --sessions 1,0
    refused 2 '-o="xml" is none of its words; rule: md, csv or json' bench -o xml
    refused 2 '--type="q9" is none .*; rule: F32' plan --shape 1b --type q9
    refused 2 '--seed="-1"' run --seed -1
    refused 2 '--kv-type="f64" .*rule: f32, f16 or bf16' run --kv-type f64
    refused 2 'unknown option "--frob"; see --help' run --frob
    refused 2 'unknown option "--stage=2"; the nearest is --stages; see --help' run --stage=2
    refused 2 'unknown option "--STAGES=2"; the nearest is --stages; see --help' run --STAGES=2
    refused 2 'unknown option "--topp"; the nearest is --top-p; see --help' run --topp 1
    refused 2 'unexpected argument "x"' run x
    refused 2 "are more than the model's" run --stages 64
    refused 2 '--splits="0"' run --stages 2 --splits 0
    refused 2 '--splits="2,1"' run --stages 3 --splits 2,1
    MEMRA_PP_STAGES=+2 refused 2 'MEMRA_PP_STAGES="\+2"' run
    MEMRA_PP_STAGES=" 2" refused 2 'MEMRA_PP_STAGES=" 2"' run
    local command
    for command in run plan logits tokenize gate bench status devices; do
        MEMRA_PP_STAGE=2 refused 2 'MEMRA_PP_STAGE="2" is set and there is no such door; the nearest is MEMRA_PP_STAGES' \
            "$command"
    done
    MEMRA_PRIME_LENGTH=1 refused 2 'MEMRA_PRIME_LENGTH="1" .*no such door; .*--help lists all' run
    MEMRA_STAGES=2 refused 2 'MEMRA_STAGES="2" .*nearest is MEMRA_PP_STAGES' run
    memra_pp_stages=2 refused 2 'memra_pp_stages="2" is set .*; the nearest is MEMRA_PP_STAGES' run -n 1
    MEMRA_PP_STAGE='' MEMRA_BUILDER=x run_pp run -n 1
    [[ $status == 0 ]]
    MEMRA_PP_STAGES=x run_pp run -n 1 --stages 1
    [[ $status == 0 ]]
    refused 3 'No such file' run -m "$TEST_DIR/none"
    refused 3 'magic|GGUF|short' run -m "$PP"
    refused 3 '' run -m "$TEST_DIR"
    refused 4 'cuda:63: (this build has no CUDA backend|no such CUDA device); devices here: cpu.*; rule: .*auto' \
        run --devices 63
    refused 4 'cpu:999: no such NUMA node' run --devices cpu:999
    refused 2 '--transport=ipc: boundary 0 -> 1 leads from cpu to cpu: .*; there shm or auto would do' \
        run --stages 2 --devices cpu,cpu --transport ipc
    refused 2 '--signal=spin is a signal of transport ipc, .* from cpu to cpu: .*; leave it out, or auto' \
        run --stages 2 --devices cpu,cpu --signal spin
    assert_nothing_left
    # the ends of a range are inside, also where a float of them is not
    local option
    for option in start-timeout hang-timeout restart-window; do
        run_pp plan --$option 0.01
        [[ $status == 0 ]]
    done
}

@test "run: not enough memory, by a limit set on the process" {
    fails grep -q '^MEMRA_SANITIZE:STRING=.' "$MEMRA_BUILD/CMakeCache.txt" ||
        skip "a sanitizer needs more address space than any limit"
    status=0
    (ulimit -v 400000 && exec "$PP" run -p x -n 1 --ctx 4000000 --sessions 8) \
        >"$TEST_DIR/out" 2>"$TEST_DIR/err" || status=$?
    [[ $status == 4 && ! -s $TEST_DIR/out ]]
    grep -q 'error: ' "$TEST_DIR/err"
    assert_nothing_left
}

@test "a signal ends the text whole, with the closing line, within a second" {
    local signal code began
    for signal in INT TERM; do
        start_pp "$TEST_DIR/text" run -p Once -n -1 --temp 0 --stages 2 \
            --fault 'stage=0,at=decode,kind=slow:20,every=1'
        wait_for 10 has_text "$TEST_DIR/text"
        kill "-$signal" -- "-$PP_PID"
        began=$(ms_now)
        end_of "$PP_PID" 5
        (($(ms_now) - began < 1000))
        [[ $signal == INT ]] && code=130 || code=143
        [[ $END_CODE == "$code" ]]
        [[ -z $(tail -c 1 "$TEST_DIR/text") ]] # a newline
        grep -q 'stop: interrupted' "$TEST_DIR/text.err"
        fails grep -q 'error' "$TEST_DIR/text.err"
    done
    start_pp "$TEST_DIR/json" run -p Once -n -1 --json \
        --fault 'stage=0,at=decode,kind=slow:20,every=1'
    wait_for 10 has_text "$TEST_DIR/json"
    kill -INT "$PP_PID"
    end_of "$PP_PID" 5
    [[ $END_CODE == 130 ]]
    json_ok "$TEST_DIR/json" '$l->{stop} eq "interrupted"'
    assert_nothing_left
}

@test "logits: the same bits for every chunk and number of stages" {
    local list=1,5,9,13,7,6,5,4,3,2,11,12,14 n_vocab
    n_vocab=$("$PP" plan | sed -n 's/^model: .* \([0-9]*\) tokens$/\1/p')
    run_pp logits --tokens "$list" -o "$TEST_DIR/want"
    [[ $status == 0 && ! -s $TEST_DIR/out ]]
    [[ $(stat -c %s "$TEST_DIR/want") == $((13 * n_vocab * 4)) ]]
    run_pp logits --tokens "$list" -o "$TEST_DIR/got" --chunk 1 --stages 2
    cmp "$TEST_DIR/want" "$TEST_DIR/got"
    tr ',' '\n' <<<"$list" >"$TEST_DIR/ids"
    run_pp logits --tokens-file "$TEST_DIR/ids" -o "$TEST_DIR/got" --chunk 5 --stages 3
    cmp "$TEST_DIR/want" "$TEST_DIR/got"
    MEMRA_PRIME_CHUNK=4 run_pp logits --tokens "$(tr ',' ' ' <<<"$list")" -o -
    cmp "$TEST_DIR/want" "$TEST_DIR/out"
    run_pp logits --tokens "$list" -o "$TEST_DIR/got" --chunk 4096 --kv-type f32
    [[ $status == 0 ]]
    fails cmp -s "$TEST_DIR/want" "$TEST_DIR/got"
}

@test "logits: bad lists, and a run that fails leaves no file and no half one" {
    local list
    for list in '' ' ' ',' '1,' '1,,2' 1.5 -1 x 4294967296; do
        refused 2 '--tokens' logits --tokens "$list" -o "$TEST_DIR/got"
    done
    refused 2 'token 4294967295 in place 2 is not in the vocabulary of' \
        logits --tokens 1,4294967295 -o "$TEST_DIR/got"
    refused 2 '-o names where' logits --tokens 1
    refused 2 'by --tokens or by --tokens-file' logits -o "$TEST_DIR/got"
    refused 2 'has no JSON form' logits --tokens 1 -o "$TEST_DIR/got" --json
    refused 2 '--chunk="0"' logits --tokens 1 --chunk 0 -o "$TEST_DIR/got"
    refused 4 '3 tokens do not fit into the context of 2' \
        logits --tokens 1,2,3 --ctx 2 -o "$TEST_DIR/got"
    refused 4 'cannot be written: No such file' logits --tokens 1 -o "$TEST_DIR/none/got"
    echo old >"$TEST_DIR/kept"
    run_pp logits --tokens 1,2,3 -o "$TEST_DIR/kept" --restarts 0 --fault stage=0,at=prime,kind=kill
    [[ $status == 5 ]]
    run_pp logits --tokens 1,2,3 -o "$TEST_DIR/got" --restarts 0 --fault stage=0,at=prime,kind=kill
    [[ $status == 5 && $(<"$TEST_DIR/kept") == old ]]
    [[ -z $(find "$TEST_DIR" -name 'got*' -o -name 'kept?*') ]]
    assert_nothing_left
}

@test "tokenize: ids on one line, no stage; special tokens and BOS as asked" {
    local bos
    run_pp tokenize -p ""
    bos=$output
    [[ $status == 0 && $bos =~ ^[0-9]+$ && ! -s $TEST_DIR/err ]]
    run_pp tokenize -p "Once upon a time"
    [[ $status == 0 && $output =~ ^$bos(\ [0-9]+)+$ && $(wc -l <"$TEST_DIR/out") == 1 ]]
    local ids=$output
    run_pp tokenize -p "Once upon a time" --no-bos
    [[ "$bos $output" == "$ids" ]]
    printf 'Once upon a time' | "$PP" tokenize -f - >"$TEST_DIR/out"
    [[ $(<"$TEST_DIR/out") == "$ids" ]]
    run_pp tokenize -p "" --no-bos
    [[ $status == 0 && $(od -An -c "$TEST_DIR/out" | tr -d ' ') == '\n' ]]
    run_pp tokenize -p $'\xff\xfe' --no-bos
    [[ $status == 0 && -n $output ]]
    run_pp tokenize -p '</s>' --no-bos
    ids=$output
    run_pp tokenize -p '</s>' --no-bos --no-special
    [[ $(wc -w <<<"$output") -gt $(wc -w <<<"$ids") ]]
    refused 2 'has no JSON form' tokenize -p x --json
    refused 3 'No such file' tokenize -m "$TEST_DIR/none" -p x
    # The ids are what the other commands take.
    run_pp logits --tokens "$("$PP" tokenize -p 'Once upon')" -o "$TEST_DIR/got"
    [[ $status == 0 && -s $TEST_DIR/got ]]
}

@test "plan: cuts and bytes for a person and as JSON; 4 when it does not fit" {
    run_pp plan --stages 2
    [[ $status == 0 && ! -s $TEST_DIR/err && $output == model:* ]]
    grep -qE '^1 +[0-9]+-[0-9]+ +cpu ' "$TEST_DIR/out"
    run_pp plan --stages 3 --splits 1,2 --json --kv-type f32
    json_ok "$TEST_DIR/out" 'join(",", @{$l->{fence}}) eq "0,1,2,$l->{n_layers}"'
    json_ok "$TEST_DIR/out" '$l->{kv_type} eq "f32" && $l->{fits} && @{$l->{stages}} == 3'
    json_ok "$TEST_DIR/out" 'join(",", @{$l->{stages}[1]{layers}}) eq "1,2"'
    json_ok "$TEST_DIR/out" '!grep { my $s = $_; grep { $s->{$_ . "_bytes"} <= 0 }
        qw(weights kv scratch slots host) } @{$l->{stages}}'
    run_pp plan --json
    json_ok "$TEST_DIR/out" '$l->{kv_type} eq "f16" && $l->{n_stages} == 1'
    # One unit in a table, and no "1 sessions".
    run_pp plan --shape 70b --type q8_0 --stages 4
    [[ $status == 0 || $status == 4 ]]
    [[ $(grep -cE '^[0-3] .*( +[0-9]+\.[0-9] MB){5}$' "$TEST_DIR/out") == 4 ]]
    ones=$(grep -hoE '(^|[^0-9.])1 (session|row|layer|stage|position)s' "$TEST_DIR/out" "$TEST_DIR/err" || true)
    [[ -z $ones ]]
    run_pp plan --ctx 10000000 --sessions 1
    [[ $status == 4 ]]
    grep -q '1 session of context 10000000' "$TEST_DIR/err"
    run_pp plan --ctx 10000000 --sessions 1000
    [[ $status == 4 && $output == model:* ]]
    [[ $(wc -l <"$TEST_DIR/err") == 1 ]]
    run_pp plan --ctx 10000000 --sessions 1000 --json
    [[ $status == 4 ]]
    json_ok "$TEST_DIR/out" '!$l->{fits}'
    refused 4 'no CUDA backend|no such CUDA device' plan --devices 63
    refused 2 'more than the model' plan --stages 64
    local line
    # KV that is too little for the context is what a context is that is too small for its prompt.
    for line in 'plan' 'run -p Once' 'logits --tokens 1 -o -'; do
        # shellcheck disable=SC2086 # words
        refused 4 'too few for one session of context 512, .* \(--kv-bytes, --ctx\)' $line --ctx 512 --kv-bytes 4096
    done
}

@test "status: where models lie is told whole, however they were named" {
    cd "$TEST_DIR"
    ln -s "$DEMO" m.gguf
    start_pp "$TEST_DIR/text" run -m m.gguf -p Once -n 400 --draft-model ./m.gguf --fault stage=0,at=decode,kind=slow:20,every=1
    wait_for 20 has_text "$TEST_DIR/text"
    "$PP" status >"$TEST_DIR/list"
    [[ $(grep -cE " $TEST_DIR/m.gguf( \(draft model\))?$" "$TEST_DIR/list") == 2 ]]
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    assert_nothing_left
}

asks_already() { # PID: of a status; the library that it asks with has threads
    [[ $(find "/proc/$1/task" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l) -gt 1 ]]
}

@test "status: no live run, the list, one run, one that does not answer" {
    run_pp status
    [[ $status == 0 && $output == 'no live run' ]]
    run_pp status --json
    json_ok "$TEST_DIR/out" 'keys %$l == 1 && @{$l->{runs}} == 0'
    refused 4 'no live run has pid 1 below .*/memra-pp \(--run-dir\); status alone lists' status 1
    refused 2 'is not a process id' status x
    refused 2 'unexpected argument' status 1 2
    # The usual place is not there before the first run; one that is named should be.
    refused 4 "run directory $TEST_DIR/none cannot be read: No such file .*--run-dir" status \
        --run-dir "$TEST_DIR/none"
    refused 4 "run directory $DEMO cannot be read: Not a directory" status 1 --json --run-dir "$DEMO"
    refused 4 'too long for sockets' status --run-dir "/tmp/$(printf '%0100d' 0)"
    start_pp "$TEST_DIR/text" run -p Once -n -1 --stages 2 \
        --fault 'stage=0,at=decode,kind=slow:20,every=1'
    wait_for 10 has_text "$TEST_DIR/text"
    run_pp status
    grep -qE "^$PP_PID +ready +2 +1 " "$TEST_DIR/out"
    run_pp status "$PP_PID"
    [[ $status == 0 ]]
    grep -qE '^1 +[0-9]+ +ready +1 +[0-9]+-[0-9]+ +0 ' "$TEST_DIR/out"
    grep -qE '^0 > 1 +shm ' "$TEST_DIR/out"
    run_pp status "$PP_PID" --json
    json_ok "$TEST_DIR/out" "\$l->{pid} == $PP_PID && \$l->{state} eq 'ready' && @{\$l->{others}} == 0"
    json_ok "$TEST_DIR/out" '$l->{boundaries}[0]{rows} > 0 && $l->{boundaries}[0]{bytes} > 0'
    json_ok "$TEST_DIR/out" "join(' ', sort map { \$_->{pid} } @{\$l->{stages}}) eq
        '$(stages_of "$PP_PID" | sort | xargs)'"
    run_pp status --json --run-dir "$RUN_DIR/memra-pp"
    json_ok "$TEST_DIR/out" "@{\$l->{runs}} == 1 && \$l->{runs}[0]{pid} == $PP_PID"
    kill -STOP "$PP_PID"
    run_pp status
    [[ $status == 0 ]]
    grep -qE "^$PP_PID +stopped" "$TEST_DIR/out"
    run_pp status --json
    json_ok "$TEST_DIR/out" '$l->{runs}[0]{state} eq "stopped"'
    refused 5 "does not answer, its process is stopped .*: kill -CONT $PP_PID" status "$PP_PID"
    # One that hangs: this shell holds the lock of a run, and answers nothing.
    local hanging=$RUN_DIR/memra-pp/run-$$-1 lock
    mkdir "$hanging"
    exec {lock}>"$hanging/lock"
    flock "$lock"
    run_pp status
    grep -qE "^$$ +not answering" "$TEST_DIR/out"
    refused 5 "run $$ does not answer within 1 s: it hangs, .*kill $$" status "$$"
    # It ends while it is asked: then there is none.
    "$PP" status "$$" >"$TEST_DIR/gone" 2>&1 {lock}>&- &
    wait_for 5 asks_already $!
    exec {lock}>&-
    status=0
    wait $! || status=$?
    [[ $status == 4 && $(<"$TEST_DIR/gone") == *"no live run has pid $$ below"* ]]
    rm -r "$hanging"
    kill -CONT "$PP_PID"
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    run_pp status
    [[ $output == 'no live run' ]]
    assert_nothing_left
}

@test "a path of any bytes: JSON says it, with U+FFFD for what is no UTF-8" {
    local model=$TEST_DIR/mö$'\xff'.gguf said='/mö\x{fffd}.gguf'
    cp "$DEMO" "$model"
    start_pp "$TEST_DIR/text" run -m "$model" -p Once -n -1 --stages 2 --trace "$TEST_DIR/t.json" \
        --fault 'stage=0,at=decode,kind=slow:20,every=1'
    wait_for 10 has_text "$TEST_DIR/text"
    run_pp status "$PP_PID" --json
    json_ok "$TEST_DIR/out" "use utf8; \$l->{pid} == $PP_PID && \$l->{model} =~ m{$said\$}"
    run_pp status --json
    json_ok "$TEST_DIR/out" "use utf8; \$l->{runs}[0]{model} =~ m{$said\$}"
    run_pp status
    grep -qaE "^$PP_PID +ready +2 +1 " "$TEST_DIR/out"
    kill -INT "$PP_PID"
    end_of "$PP_PID"
    iconv -f utf-8 -t utf-8 "$TEST_DIR/t.json" | grep -qaF $'m\xc3\xb6\xef\xbf\xbd.gguf, 2 stages'
    run_pp bench -m "$model" -p 8 -n 8 -r 1 -o json
    tr -d '\n' <"$TEST_DIR/out" >"$TEST_DIR/one"
    json_ok "$TEST_DIR/one" "use utf8; \$l->{model} eq qq{mö\x{fffd}.gguf}"
}

@test "the coordinator links no CUDA" {
    fails grep -qE 'cuda|libnccl|libcublas' <(ldd "$PP")
    fails grep -qE ' (cuda[A-Z]|cu[A-Z][a-z]+[A-Z])' <(nm -a "$PP" 2>/dev/null)
}

@test "devices: the processor, its nodes, and whether CUDA is in this build" {
    run_pp devices
    [[ $status == 0 ]]
    grep -qE '^cuda:[0-9]|CUDA devices: (not in this build|none here)' "$TEST_DIR/out"
    grep -qE '^cpu +[0-9]+ ' "$TEST_DIR/out"
    run_pp devices --json
    json_ok "$TEST_DIR/out" '$l->{devices}[0]{device} eq "cpu" && exists $l->{cuda}'
    json_ok "$TEST_DIR/out" '$l->{devices}[0]{cores} >= 1 && $l->{isa} =~ /ref/'
    # What it lists can be used.
    local device
    while read -r device _; do
        [[ $device == cpu* ]] || continue
        run_pp run -p Once -n 1 --devices "$device"
        [[ $status == 0 ]]
    done < <("$PP" devices)
}
