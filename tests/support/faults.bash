# faults.bash - what the bats files about ends and faults share, on top of common.bash.
# shellcheck shell=bash
# shellcheck disable=SC2034 # CODE, OUT, ERR, MS are the tests' to read

clock_ms() {
    local t=${EPOCHREALTIME/[.,]/}
    printf '%s' $((t / 1000))
}

# pp ARGUMENT..: the program to its end, a minute at most; CODE, OUT, ERR, MS.
pp() {
    local began
    began=$(clock_ms)
    CODE=0
    timeout -k 1 60 "$PP" "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || CODE=$?
    MS=$(($(clock_ms) - began))
    OUT=$(<"$TEST_DIR/out")
    ERR=$(<"$TEST_DIR/err")
}

# expect_error CODE PATTERN [FILE]: it ended with that code and exactly one error line, which
# matches.
expect_error() {
    local text=${3:+$(<"$3")}
    text=${text:-$ERR}
    [[ $CODE == "$1" ]] || {
        printf 'exit code %s, not %s\n%s\n' "$CODE" "$1" "$text" >&2
        return 1
    }
    [[ $(grep -c 'error:' <<<"$text") == 1 ]] || {
        printf 'not one error line:\n%s\n' "$text" >&2
        return 1
    }
    grep -qE -- "error: .*$2" <<<"$text" || {
        printf 'no error like: %s\n%s\n' "$2" "$text" >&2
        return 1
    }
}

# at_most WHAT MS LIMIT
at_most() {
    (($2 <= $3)) || {
        printf '%s after %s ms, not within %s\n' "$1" "$2" "$3" >&2
        return 1
    }
}

# has_no PATTERN FILE
has_no() {
    if grep -E -- "$1" "$2" >&2; then return 1; fi
}

status_has() {
    "$PP" status --json 2>/dev/null | grep -qE -- "$1"
}

# end_within MS: wait for PP_PID; fail when it took longer.
end_within() {
    local began
    began=$(clock_ms)
    end_of "$PP_PID" $(($1 / 1000 + 5))
    at_most ended $(($(clock_ms) - began)) "$1"
}

# idle_run ARGUMENT..: a run whose stages have nothing to do, because nobody says another line. Sets
# PP_PID and waits until they are idle; `say` says a line.
idle_run() {
    mkfifo "$TEST_DIR/lines"
    exec {LINES_FD}<>"$TEST_DIR/lines"
    set -m
    setpriv --pdeathsig KILL "$PP" run -i -m "$DEMO" --temp 0 --stages 3 -n 20 "$@" \
        >"$TEST_DIR/out" 2>"$TEST_DIR/out.err" <"$TEST_DIR/lines" 3>&- 4>&- &
    PP_PID=$!
    set +m
    say Once
    wait_for 10 is_idle
}

say() {
    printf '%s\n' "$1" >&"$LINES_FD"
}

is_idle() {
    "$PP" status --json >"$TEST_DIR/s1" 2>/dev/null || return 1
    sleep 0.2
    "$PP" status --json >"$TEST_DIR/s2" 2>/dev/null || return 1
    grep -q '"ready"' "$TEST_DIR/s2" && grep -qE '"steps": ?[1-9]' "$TEST_DIR/s2" &&
        cmp -s <(grep -oE '"steps": ?[0-9]+' "$TEST_DIR/s1") <(grep -oE '"steps": ?[0-9]+' "$TEST_DIR/s2")
}

# pid_of_stage S: of the only run there is.
pid_of_stage() {
    "$PP" status --json 2>/dev/null | perl -MJSON::PP -e '
        my $o = decode_json(join "", <STDIN>);
        my $runs = ref $o eq "ARRAY" ? $o : $o->{runs} // [$o];
        print $runs->[0]{stages}[$ARGV[0]]{pid}' "$1"
}

# pid_has_changed S PID: stage S has another process than PID, and the run serves.
pid_has_changed() {
    local now
    now=$(pid_of_stage "$1") && [[ -n $now && $now != "$2" ]] && status_has '"state": ?"ready"'
}
