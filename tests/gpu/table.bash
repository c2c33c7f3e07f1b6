# table.bash - checks of a script on a machine with GPUs, each under a limit, a line of a table for each.
# Sourced; makes the folder $work and removes it at the end. Checks that judge bits run several at a
# time (MEMRA_GPU_JOBS, 4: the device is time-sliced, and more only wait for each other); those that
# judge bytes or times, or are many themselves, run alone. A check that skips, or chooses no test, is no
# success: there is a GPU here. Each line is said on stderr as soon as it is known; the table has them in order.
jobs_max=${MEMRA_GPU_JOBS:-4}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_checks=0

note() { # PLACE NAME STATUS SECONDS TEXT
    printf '%-40s %-5s %4s s  %s\n' "$2" "$3" "$4" "$5" | tee "$work/$1.row" >&2
}

# Run a command under a limit; its last line stands in the table, or that with which a gate ends.
judge() { # PLACE NAME CODE LIMIT COMMAND..
    local place=$1 name=$2 want=$3 limit=$4 began=$SECONDS code=0 word=ok out=$work/$1.out last
    shift 4
    timeout "$limit" "$@" >"$out" 2>&1 || code=$?
    ((code == want)) || word=RED
    ! grep -q '^1\.\.0' "$out" || word=SKIP
    [[ $word == ok ]] || { printf '%s\n' "--- $name ($code)" && tail -n 25 "$out"; }
    last=$(grep -E '^# (green|red): ' "$out" | tail -n 1)
    [[ -n $last ]] || last=$(grep -vE '^(1\.\.|ok |not ok |=+ *$|$)' "$out" | tail -n 1)
    note "$place" "$name" "$word" $((SECONDS - began)) "${last:0:100}"
}

next_place() {
    n_checks=$((n_checks + 1))
    place=$(printf '%03d' "$n_checks")
}

check_code() { # CODE NAME LIMIT COMMAND..: beside others; red: another exit code than CODE
    local place code=$1
    shift
    next_place
    while (($(jobs -rp | wc -l) >= jobs_max)); do wait -n; done
    judge "$place" "$1" "$code" "${@:2}" &
}

check() { check_code 0 "$@"; } # NAME LIMIT COMMAND..: beside others

alone() { # NAME LIMIT COMMAND..
    local place
    next_place
    wait
    judge "$place" "$1" 0 "${@:2}"
    last_out=$work/$place.out
}

not_here() { # NAME WHY
    local place
    next_place
    note "$place" "$1" none 0 "not run: $2"
}

# The table, and whether all of it is well.
print_table() {
    wait
    cat "$work"/*.row
    echo "$n_checks checks in $SECONDS s"
    ! grep -qE ' (RED|SKIP) ' "$work"/*.row
}
