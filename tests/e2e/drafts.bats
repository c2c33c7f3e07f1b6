#!/usr/bin/env bats
# drafts.bats - run and plan with guesses, the text's own or a second model's: the text stays, what is
# lost costs guesses alone, and what cannot draft is refused.

# shellcheck disable=SC2016 # for a script to expand
load ../support/common
load ../support/commands

setup() { memra_setup; }
teardown() { memra_teardown; }

@test "run: with drafts the same text, and a line about those that were verified, if any were" {
    local n t
    local cat="The cat sat on the mat. The cat sat on the mat. The cat sat on the"
    for t in 0 0.8; do
        run_pp run -p "$cat" -n 200 --temp "$t" --draft 0
        cp "$TEST_DIR/out" "$TEST_DIR/plain"
        fails grep 'drafts:' "$TEST_DIR/err"
        for n in 1 3; do
            run_pp run -p "$cat" -n 200 --temp "$t" --stages $n --fault \
                stage=all,at=decode,kind=slow:2,every=1
            [[ $status == 0 ]] || {
                cat "$TEST_DIR/err" >&2
                return 1
            }
            cmp "$TEST_DIR/plain" "$TEST_DIR/out"
            fails grep -v 'drafts: [0-9]* of [0-9]* tokens\? accepted, in [0-9]* steps\?$' <(grep drafts "$TEST_DIR/err")
        done
    done
    run_pp run -p "$cat" -n 20 --json --draft 4
    json_ok "$TEST_DIR/out" '$l->{n_drafted} >= $l->{n_accepted}'
    refused 2 "--draft" run -p x --draft 17
}

@test "run --draft-model: a second process drafts, the text stays, also when it is killed" {
    local t
    for t in 0 0.8; do
        run_pp run -p "Once upon a time" -n 120 --temp "$t" --draft 0
        cp "$TEST_DIR/out" "$TEST_DIR/plain"
        # Steps that cost the same however many rows they have: the model drafts well for itself.
        run_pp run -p "Once upon a time" -n 120 --temp "$t" --draft-model "$DEMO" --stages 2 --fault \
            stage=all,at=decode,kind=slow:3,every=1
        [[ $status == 0 ]]
        cmp "$TEST_DIR/plain" "$TEST_DIR/out"
        grep -q '^memra-pp: draft model: demo.gguf, 8 layers' "$TEST_DIR/err"
        grep -qE 'drafts: [1-9][0-9]* of [0-9]+ tokens? accepted' "$TEST_DIR/err"
    done
    start_pp "$TEST_DIR/text" run -p "Once upon a time" -n 280 --temp 0 --draft-model "$DEMO" --stages 2 \
        --fault stage=all,at=decode,kind=slow:50,every=1
    wait_for 20 has_text "$TEST_DIR/text"
    "$PP" status >"$TEST_DIR/list"
    grep -qE "^$PP_PID +ready +2 .*demo.gguf$" "$TEST_DIR/list"
    grep -qE "^$PP_PID +ready +1 .*demo.gguf \(draft model\)$" "$TEST_DIR/list"
    "$PP" status "$PP_PID" | grep '^run' >"$TEST_DIR/list"
    [[ $(head -n 1 "$TEST_DIR/list") == "run $PP_PID: ready, "* ]]
    [[ $(tail -n 1 "$TEST_DIR/list") == "run $PP_PID (draft model): ready, "* ]]
    # As JSON the same: the run, and in it the one that drafts for it.
    "$PP" status "$PP_PID" --json >"$TEST_DIR/list"
    json_ok "$TEST_DIR/list" '@v == 1 && !exists $l->{called} && $l->{n_stages} == 2 && @{$l->{others}} == 1'
    json_ok "$TEST_DIR/list" '$l->{others}[0]{called} eq "draft model" && $l->{others}[0]{state} eq "ready"'
    json_ok "$TEST_DIR/list" "join(' ', sort map { \$_->{pid} } map { @{\$_->{stages}} } \$l, @{\$l->{others}})
        eq '$(stages_of "$PP_PID" | sort | xargs)'"
    "$PP" status "$PP_PID" --json | grep -q '"n_stages":2'
    kill -KILL "$(stages_of "$PP_PID" | tail -n 1)" # started last
    end_of "$PP_PID" 30
    grep -q 'warning: draft model, stage 0 .* took its place' "$TEST_DIR/text.err"
    run_pp run -p "Once upon a time" -n 280 --temp 0 --draft 0
    cmp "$TEST_DIR/text" "$TEST_DIR/out"
    assert_nothing_left
}

@test "run --draft-model: a process that is stopped early is replaced, and drafts then" {
    run_pp run -p "Once upon a time" -n 250 --temp 0 --draft 0
    start_pp "$TEST_DIR/text" run -p "Once upon a time" -n 250 --temp 0 --draft-model "$DEMO" --stages 2 \
        --hang-timeout 0.5 --fault stage=all,at=decode,kind=slow:10,every=1
    wait_for 20 grep -q 'draft model: demo.gguf' "$TEST_DIR/text.err"
    kill -STOP "$(stages_of "$PP_PID" | tail -n 1)"
    end_of "$PP_PID" 30
    [[ $END_CODE == 0 ]]
    cmp "$TEST_DIR/out" "$TEST_DIR/text"
    [[ $(grep -c 'warning: draft model, stage 0 .*stopped by SIGSTOP; pid .* took its place' "$TEST_DIR/text.err") == 1 ]]
    grep -qE 'drafts: [1-9][0-9]+ of [0-9]+ tokens accepted' "$TEST_DIR/text.err"
    # Ctrl-C does not wait for one that is stopped.
    start_pp "$TEST_DIR/more" run -p "Once upon a time" -n 250 --draft-model "$DEMO" --hang-timeout 60 \
        --fault stage=all,at=decode,kind=slow:50,every=1
    wait_for 20 has_text "$TEST_DIR/more"
    kill -STOP "$(stages_of "$PP_PID" | tail -n 1)"
    kill -INT -- "-$PP_PID"
    end_of "$PP_PID" 3
    [[ $END_CODE == 130 ]]
    assert_nothing_left
}

@test "run --draft-model: a process that is lost while it loads costs no more than its drafts" {
    run_pp run -p "Once upon a time" -n 40 --temp 0
    local want=$output
    # The stages of the run's second pipeline, which is the draft model's, end at once.
    # shellcheck disable=SC2016 # for the script to expand
    printf '#!/bin/sh\ncase "$*" in */run-*-1/*) kill -9 $$ ;; esac\nexec %s "$@"\n' "$STAGE" >"$TEST_DIR/program"
    chmod +x "$TEST_DIR/program"
    run_pp run -p "Once upon a time" -n 40 --temp 0 --stages 2 --draft-model "$DEMO" --stage-program "$TEST_DIR/program"
    [[ $status == 0 && $output == "$want" ]]
    [[ $(grep -c 'warning: ' "$TEST_DIR/err") == 1 ]]
    grep -qE 'warning: the draft model is lost, .* goes on plainly: stage 0 .* while loading: killed by SIGKILL$' "$TEST_DIR/err"
    assert_nothing_left
}

@test "run --draft-model: another vocabulary, no drafts, no file: one line" {
    local line
    for line in 'run -p x' 'plan' 'gate spec' 'gate all'; do
        # shellcheck disable=SC2086 # words
        refused 3 "--draft-model: $TEST_DIR/no-such-file: cannot be opened: No such file" $line \
            --draft-model "$TEST_DIR/no-such-file"
    done
    # A stage program that cannot be had a second time.
    printf '#!/bin/bash\n[[ $1 == --probe ]] || mkdir "%s" 2>/dev/null || exit 4\nexec "%s" "$@"\n' \
        "$TEST_DIR/first" "$MEMRA_BUILD/bin/memra-stage" >"$TEST_DIR/once"
    chmod +x "$TEST_DIR/once"
    refused 4 "error: --draft-model: stage 0 \(pid [0-9]+, layers 0-7\) was lost while loading" run -p x \
        --draft-model "$DEMO" --log-level warn --stage-program "$TEST_DIR/once"
    refused 2 "--draft-model is for gate spec" gate ppn --draft-model "$DEMO"
    refused 3 "--draft-model .*demo.gguf has 1024 tokens, .* has 2048: it cannot draft for it" gate spec \
        --shape layers=2,embd=64,heads=2,kv-heads=2,ff=128,vocab=2048 --draft-model "$DEMO"
    refused 2 "--draft-model needs a name" run -p x --draft-model ""
    refused 2 "--draft 0 leaves nothing" run -p x --draft 0 --draft-model "$DEMO"
    require_shared models/stories260K/stories260K-f32.gguf
    refused 3 "--draft-model stories260K-f32.gguf has another .* demo.gguf" run -p x \
        --draft-model "$SHARED/models/stories260K/stories260K-f32.gguf"
}

@test "plan --draft-model: what it needs, and that both must fit" {
    run_pp plan --stages 2 --draft-model "$DEMO"
    [[ $status == 0 ]]
    grep -qE '^draft model: llama, 8 layers, .* on cpu: weights .*needs ' "$TEST_DIR/out"
    run_pp plan --json --draft-model "$DEMO"
    json_ok "$TEST_DIR/out" '$l->{fits} && $l->{draft}{stage}{kv_bytes} > $l->{stages}[0]{kv_bytes}
        && $l->{draft}{needs_bytes} > $l->{draft}{stage}{weights_bytes}'
    # The totals are of both.
    cp "$TEST_DIR/out" "$TEST_DIR/both"
    run_pp plan --json
    json_ok "$TEST_DIR/out" '!defined $l->{draft}'
    cat "$TEST_DIR/both" >>"$TEST_DIR/out"
    json_ok "$TEST_DIR/out" '$v[1]{weights_total_bytes} - $v[0]{weights_total_bytes} == $l->{draft}{stage}{weights_bytes}
        && $v[1]{total_bytes} - $v[0]{total_bytes} + $l->{draft}{stage}{weights_bytes} == $l->{draft}{needs_bytes}'
    run_pp plan --draft-model "$DEMO"
    grep -qE "^in all: .* allocated, 7\.3 MB of weights; free: " <<<"$(tail -n 1 "$TEST_DIR/out")"
}
