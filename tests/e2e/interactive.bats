#!/usr/bin/env bats
# run -i: a session over turns, from a pipe and on a terminal (script(1) makes one).
load ../support/common
load ../support/faults

setup() {
    memra_setup
    SLOW=stage=0,at=decode,kind=slow:20,every=1
}

teardown() {
    memra_teardown
}

# Lines from stdin through run -i; CODE, OUT, ERR.
talk() {
    CODE=0
    timeout -k 1 60 "$PP" run -i "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" || CODE=$?
    OUT=$(<"$TEST_DIR/out")
    ERR=$(<"$TEST_DIR/err")
}

@test "a pipe: answers alone on stdout, the session kept, an empty line goes on" {
    talk --temp 0 -n 12 <<<"Once upon a time"
    [[ $CODE == 0 && $OUT != *'>'* ]]
    local first=$OUT whole
    whole=$("$PP" run -p "Once upon a time" --temp 0 -n 24 --log-level warn)
    [[ "Once upon a time$first" == "${whole:0:16+${#first}}" ]]
    # Two answers of 12, put together, are one of 24.
    printf 'Once upon a time\n\n' >"$TEST_DIR/in"
    talk --temp 0 -n 12 <"$TEST_DIR/in"
    [[ "Once upon a time$(tr -d '\n' <<<"$OUT")" == "$(tr -d '\n' <<<"$whole")" ]]
    grep -q 'limit: 12 tokens' "$TEST_DIR/err"
    # What was said before counts, until /clear. The last line needs no newline.
    printf 'A dog ran.\nOnce upon a time\n/clear\nOnce upon a time' >"$TEST_DIR/in"
    talk --temp 0 -n 12 --stages 3 <"$TEST_DIR/in"
    [[ $CODE == 0 && $OUT == *"$first" ]]
    assert_nothing_left
}

@test "the prompt stands before the first line; a backslash joins lines" {
    printf ' upon a\\\ntime\n' >"$TEST_DIR/in"
    talk -p Once --temp 0 -n 8 <"$TEST_DIR/in"
    [[ "$(printf 'Once upon a\ntime%s' "$OUT")" == \
        "$("$PP" run -p $'Once upon a\ntime' --temp 0 -n 8 --log-level warn)" ]]
}

@test "the end of the context says length and what to do; /clear makes room" {
    yes 'Once upon a time' | head -c 2000 | tr '\n' ' ' >"$TEST_DIR/in"
    printf '\nOnce upon a time\n\n/clear\nOnce' >>"$TEST_DIR/in"
    talk --temp 0 -n -1 --ctx 64 <"$TEST_DIR/in"
    [[ $CODE == 0 ]]
    [[ $(grep -c 'length: .*/clear' <<<"$ERR") -ge 3 ]]
    grep -qE 'length: no room for [0-9]+ tokens? beside' <<<"$ERR"
    grep -q 'the context of 64 positions is full' <<<"$ERR"
    [[ -n $OUT ]]
}

@test "input that is empty, and options that do not go together" {
    talk </dev/null
    [[ $CODE == 0 && -z $OUT ]]
    printf '\n\n' >"$TEST_DIR/in"
    talk -n 3 --temp 0 <"$TEST_DIR/in"
    [[ $CODE == 0 ]]
    talk -n 0 </dev/null
    expect_error 2 "-n 0 with -i"
    talk -f - </dev/null
    expect_error 2 "both read standard input"
    talk --json </dev/null
    expect_error 2 "no JSON form"
}

@test "a stage that dies while a line is waited for ends it at once" {
    mkfifo "$TEST_DIR/fifo"
    exec 8<>"$TEST_DIR/fifo"
    setpriv --pdeathsig KILL "$PP" run -i --stages 2 --restarts 0 <"$TEST_DIR/fifo" \
        >"$TEST_DIR/out" 2>"$TEST_DIR/err" 3>&- 8>&- &
    PP_PID=$!
    wait_for 20 grep -q 'stage 1: ' "$TEST_DIR/err"
    kill -KILL "$(stages_of "$PP_PID" | tail -n 1)"
    end_within 1500
    [[ $END_CODE == 5 ]]
    CODE=5 expect_error 5 "was lost" "$TEST_DIR/err"
    assert_nothing_left
}

# run -i on a terminal whose keys come from the fifo $TEST_DIR/keys (descriptor 8); what it shows
# goes to $TEST_DIR/screen.
on_terminal() {
    script -qec true /dev/null >/dev/null 2>&1 || skip "no pseudo-terminal can be made here"
    mkfifo "$TEST_DIR/keys"
    exec 8<>"$TEST_DIR/keys"
    printf '%q ' "$PP" run -i --temp 0 "$@" >"$TEST_DIR/command"
    printf '; echo "code $?"\n' >>"$TEST_DIR/command"
    TERM=xterm setpriv --pdeathsig KILL script -qefc "bash $TEST_DIR/command" /dev/null \
        <"$TEST_DIR/keys" >"$TEST_DIR/screen" 3>&- 8>&- &
}

shows() { # PATTERN [TIMES]
    (($(grep -aoE -- "$1" "$TEST_DIR/screen" | wc -l) >= ${2:-1}))
}

@test "a terminal: a line is edited and called back; Ctrl-C stops the answer, then the program" {
    on_terminal --stages 2 -n -1 --fault "$SLOW"
    wait_for 20 shows '^> ' || wait_for 1 shows '> $'
    printf 'Onx\177ce upon a time\n' >&8
    wait_for 10 shows ', there'
    printf '\003' >&8
    wait_for 5 shows 'interrupted; an empty line goes on'
    printf '\033[A' >&8 # the line before
    wait_for 5 shows 'Once upon a time'
    printf '\003' >&8 # is given up: the program stays
    wait_for 5 shows '> ' 3
    has_no 'code ' "$TEST_DIR/screen"
    printf '\003' >&8
    wait_for 5 shows 'code 130'
    assert_nothing_left
}

@test "a terminal: Ctrl-D at the prompt ends it with 0" {
    on_terminal -n 4
    wait_for 20 shows '> '
    printf 'Once\n' >&8
    wait_for 10 shows 'limit: 4 tokens'
    printf '\004' >&8
    wait_for 5 shows 'code 0'
    assert_nothing_left
}
