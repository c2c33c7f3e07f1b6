#!/usr/bin/env bats
# json.bats - the stream of run --json: a line a token, and one that says how it ended, however that was.

# shellcheck disable=SC2016 # Perl in single quotes
load ../support/common
load ../support/commands

setup() { memra_setup; }
teardown() { memra_teardown; }

@test "run --json: a line a token, whole characters, the last line closes" {
    run_pp run --json -p "Once upon" -n 20 --temp 0 --stages 2
    [[ $status == 0 ]]
    json_ok "$TEST_DIR/out" '@v == 21 && $l->{text} eq ""
        && !grep { join(",", sort keys %$_) ne "text,token" } @v[0 .. 19]'
    json_ok "$TEST_DIR/out" '$l->{stop} eq "limit" && $l->{n_generated} == 20'
    json_ok "$TEST_DIR/out" '$l->{n_prompt} > 1 && $l->{prompt_tokens_per_s} > 0
        && $l->{generation_tokens_per_s} > 0'
    json_ok "$TEST_DIR/out" 'join(",", map { $_->{stage} } @{$l->{stages}}) eq "0,1"'
    json_ok "$TEST_DIR/out" '!grep { abs($_->{busy} + $_->{idle} - 1) > 1e-6 || $_->{busy} <= 0 }
        @{$l->{stages}}'
    json_ok "$TEST_DIR/out" 'print "Once upon", map({ $_->{text} } @v), "\n"' \
        >"$TEST_DIR/joined"
    run_pp run -p "Once upon" -n 20 --temp 0
    cmp "$TEST_DIR/joined" "$TEST_DIR/out"
}

@test "run --json: the last line says how it ended, also when it failed" {
    local fault code error
    # After some tokens: a stage lost for good, NaN; before any: while loading, no memory.
    while read -r fault code error; do
        run_pp run --json -p "Once upon" -n 30 --temp 0 --stages 2 --restarts 0 --fault "$fault"
        [[ $status == "$code" ]]
        json_ok "$TEST_DIR/out" "\$l->{stop} eq 'error' && \$l->{error} =~ /$error/ && \$l->{code} == $code"
        json_ok "$TEST_DIR/out" '$l->{n_generated} == @v - 1 && !grep { exists $_->{stop} } @v[0 .. $#v - 1]'
    done <<'END'
stage=1,at=decode,step=3,kind=kill 5 ^stage.1.*SIGKILL
stage=1,at=decode,step=3,kind=nan 7 NaN.or.infinity
stage=0,at=load,kind=kill 5 ^stage.0.*while.loading
stage=1,at=load,kind=oom 4 no.memory
END
    # Refused before anything starts; a path is any bytes.
    run_pp run --json -m "$TEST_DIR/n"$'\xff'"o" -p x
    [[ $status == 3 ]]
    json_ok "$TEST_DIR/out" '@v == 1 && $l->{stop} eq "error" && $l->{error} =~ m{/n\x{fffd}o: .*No such file}'
    run_pp run --json -p x --trace "$TEST_DIR/none/t"
    [[ $status == 4 ]]
    json_ok "$TEST_DIR/out" '@v == 1 && $l->{error} =~ /^--trace /'
    # So is a line that cannot be meant, or a log that cannot be written, wherever --json stands.
    local line
    while IFS='|' read -r line code error; do
        # shellcheck disable=SC2086 # words
        run_pp run $line
        [[ $status == "$code" && $(wc -l <"$TEST_DIR/err") == 1 ]]
        json_ok "$TEST_DIR/out" "@v == 1 && \$l->{stop} eq 'error' && \$l->{error} =~ /$error/ && \$l->{code} == $code"
    done <<END
--json --bad|2|unknown option
--ctx x -p y --json|2|^--ctx=
--json --stages 99|2|^--stages=
--json y|2|unexpected argument
--json -i|2|has no JSON form
--json --log-file $TEST_DIR/none/log|4|--log-file .* cannot be written
END
    status=0
    (ulimit -s 64 && exec "$PP" run --json >"$TEST_DIR/out" 2>"$TEST_DIR/err") || status=$?
    [[ $status == 4 ]]
    json_ok "$TEST_DIR/out" '@v == 1 && $l->{error} =~ /ulimit -s/ && $l->{code} == 4'
    run_pp run -p --json --bad # a prompt
    [[ $status == 2 && ! -s $TEST_DIR/out ]]
    # A signal while it loads.
    start_pp "$TEST_DIR/json" run -p Once --json --stages 2 --fault stage=1,at=load,kind=slow:20000
    wait_for 10 has_stages "$PP_PID" 2
    kill -INT "$PP_PID"
    end_of "$PP_PID" 5
    [[ $END_CODE == 130 ]]
    json_ok "$TEST_DIR/json" '@v == 1 && $l->{stop} eq "interrupted" && !exists $l->{error}'
    assert_nothing_left
}
