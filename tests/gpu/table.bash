# table.bash - steps of a script on a machine with GPUs: each under a limit, a line of a table for each.
# Sourced; needs: work (a folder).
table=()

note() { # NAME STATUS SECONDS TEXT
    table+=("$(printf '%-44s %-5s %4s s  %s' "$1" "$2" "$3" "$4")")
}

# Run a command under a limit; the last line of its output stands in the table, the end of it above the
# table where its exit code is not the one asked for. A test that skips is no success here.
check_code() { # CODE NAME LIMIT COMMAND..
    local want=$1 name=$2 limit=$3 began=$SECONDS code=0 word=ok
    shift 3
    timeout "$limit" "$@" >"$work/out" 2>&1 || code=$?
    ((code == want)) || word="RED"
    ! grep -q '^1..0 # SKIP' "$work/out" || word="SKIP"
    [[ $word == ok ]] || { printf '%s\n' "--- $name ($code)" && tail -n 25 "$work/out"; }
    note "$name" "$word" $((SECONDS - began)) "$(grep -v '^#' "$work/out" | tail -n 1 | cut -c1-90)"
}

check() { check_code 0 "$@"; } # NAME LIMIT COMMAND..

# The table, and whether all of it is well.
print_table() {
    printf '%s\n' "${table[@]}"
    ! printf '%s\n' "${table[@]}" | grep -qE ' (RED|SKIP) '
}
