# commands.bash - what the bats files about commands share, on top of common.bash.
# shellcheck shell=bash
# shellcheck disable=SC2016 # Perl in single quotes
# shellcheck disable=SC2034 # output is the tests' to read

# run_pp ARGUMENT..: stdout to $output, stderr to $TEST_DIR/err, exit code to $status
run_pp() {
    status=0
    "$PP" "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || status=$?
    output=$(<"$TEST_DIR/out")
}

# refused CODE PATTERN ARGUMENT..: the command ends with CODE, one line of stderr that matches, and
# nothing on stdout.
refused() {
    local code=$1 pattern=$2
    shift 2
    run_pp "$@"
    if [[ $status != "$code" || -s $TEST_DIR/out || $(wc -l <"$TEST_DIR/err") != 1 ]] ||
        fails grep -qE -- "$pattern" "$TEST_DIR/err"; then
        printf 'memra-pp %s: exit code %s, not %s with one line like "%s":\n' "$*" "$status" \
            "$code" "$pattern"
        cat "$TEST_DIR/err"
        return 1
    fi
}

# json_ok FILE EXPRESSION: every line of the file is JSON, and the Perl expression holds of the list
# @v of them; $l is the last.
json_ok() {
    perl -MJSON::PP -e '
        open my $f, "<", $ARGV[0] or die "$ARGV[0]: $!\n";
        our @v = map { JSON::PP->new->utf8->decode($_) } <$f>;
        our $l = $v[-1];
        binmode STDOUT, ":utf8";
        my $holds = eval $ARGV[1];
        die "$@ in: $ARGV[1]\n" if $@;
        $holds or die "not so: $ARGV[1]\nlast line: ", JSON::PP->new->canonical->encode($l), "\n"' \
        "$1" "$2"
}

# The command fails: `!` alone would not end a test.
fails() {
    ! "$@"
}

ms_now() {
    printf '%s' $((${EPOCHREALTIME/[.,]/} / 1000))
}

has_text() {
    [[ -s $1 ]]
}
