# common.bash - what every bats file starts with:
#
#   load ../support/common
#   setup() { memra_setup; }
#   teardown() { memra_teardown; }
#
# memra_setup gives the test, exported where programs read it:
#   MEMRA_ROOT, MEMRA_BUILD   source tree, build folder (default build/release)
#   PP, STAGE                 the two programs
#   TEST_DIR                  a private empty folder for files
#   RUN_DIR                   a private empty run directory, with a path short enough for sockets;
#                             also XDG_RUNTIME_DIR, so that it is what programs use by themselves
# and unsets every door. memra_teardown kills what is left of the test's processes and removes both
# folders; it does not judge: assert_nothing_left does.
# shellcheck shell=bash
# shellcheck disable=SC2034 # the results of start_pp and end_of are the tests' to read

MEMRA_ROOT=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
: "${MEMRA_BUILD:=$MEMRA_ROOT/build/release}"
export MEMRA_ROOT MEMRA_BUILD
PP=$MEMRA_BUILD/bin/memra-pp
STAGE=$MEMRA_BUILD/bin/memra-stage
SHARED=${MEMRA_SHARED:-$MEMRA_ROOT/../shared}
DEMO=$MEMRA_ROOT/launch/demo/demo.gguf
export PP STAGE SHARED DEMO

memra_setup() {
    local name
    for name in $(compgen -e | grep -E '^MEMRA_(PP|BATCH|SPEC|PRIME)_' || true); do
        unset "$name"
    done
    TEST_DIR=$(mktemp -d "${TMPDIR:-/tmp}/memra-test.XXXXXX")
    RUN_DIR=$(mktemp -d /tmp/memra-r.XXXXXX)
    chmod 700 "$RUN_DIR"
    export TEST_DIR RUN_DIR XDG_RUNTIME_DIR=$RUN_DIR
    memra_shm_before=$(memra_shm_entries)
}

memra_teardown() {
    local pid
    for pid in $(memra_processes); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait_for 5 no_processes || true
    rm -rf -- "$TEST_DIR" "$RUN_DIR"
}

# --- data ---------------------------------------------------------------------------------------

# Skip, by name, a test that needs the handed data; with arguments: these files of it.
require_shared() {
    local file
    [[ -d $SHARED ]] || skip "no test data at $SHARED"
    for file; do
        [[ -e $SHARED/$file ]] || skip "no $file in the test data"
    done
}

# built_with address|thread: the programs carry that sanitizer.
built_with() {
    grep -qx "MEMRA_SANITIZE:STRING=$1" "$MEMRA_BUILD/CMakeCache.txt"
}

# --- time ---------------------------------------------------------------------------------------

# wait_for SECONDS COMMAND..: until the command succeeds; when it has not within the limit, print
# what was waited for and fail. SECONDS may have a fraction of up to six digits.
wait_for() {
    local seconds=${1%.*} fraction=000000 until_us
    [[ $1 != *.* ]] || fraction=$(printf '%-6s' "${1#*.}" | tr ' ' 0)
    until_us=$((${EPOCHREALTIME/[.,]/} + 10#${seconds:-0}$fraction))
    local limit=$1
    shift
    until "$@"; do
        if ((${EPOCHREALTIME/[.,]/} > until_us)); then
            printf 'waited %s s in vain for: %s\n' "$limit" "$*" >&2
            return 1
        fi
        sleep 0.02
    done
}

# --- processes ----------------------------------------------------------------------------------

# Set PARENT and STATE (a letter; Z is a zombie, which has ended); both empty when it is gone.
read_stat() {
    local stat=''
    STATE='' PARENT=''
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    read -r STATE PARENT _ <<<"${stat##*) }"
}

is_gone() {
    read_stat "$1"
    [[ $STATE == [ZX] || -z $STATE ]]
}

is_alive() {
    ! is_gone "$1"
}

# Process ids of the live children of a process, ascending.
children_of() {
    local dir
    for dir in /proc/[0-9]*; do
        read_stat "${dir#/proc/}"
        [[ $PARENT != "$1" || $STATE == [ZX] ]] || echo "${dir#/proc/}"
    done | sort -n
}

# The stage processes of a coordinator, ascending by process id.
stages_of() {
    local pid
    for pid in $(children_of "$1"); do
        [[ ! /proc/$pid/exe -ef $STAGE ]] || echo "$pid"
    done
}

has_stages() { # PID N: the coordinator has exactly N stage processes
    [[ $(stages_of "$1" | wc -l) == "$2" ]]
}

# All live memra processes that this test started, directly or not: programs of this build whose
# environment or command line has the test's run directory.
memra_processes() {
    grep -lsaF -- "$RUN_DIR" /proc/[0-9]*/environ /proc/[0-9]*/cmdline | cut -d/ -f3 | sort -un |
        while read -r pid; do
            [[ /proc/$pid/exe -ef $PP || /proc/$pid/exe -ef $STAGE ]] || continue
            is_gone "$pid" || echo "$pid"
        done
}

no_processes() {
    [[ -z $(memra_processes) ]]
}

# start_pp OUT ARGUMENT..: memra-pp in the background, in a process group of its own (so that a test
# can signal the group: kill -INT -- -$PP_PID), stdout to OUT, stderr to OUT.err. Both are empty when
# this returns: what a test waits for in them is of this run, not of one before it (a signal sent on
# the strength of old text may reach the shell's child before exec and be lost there). Sets PP_PID.
# Ends with the test at the latest.
start_pp() {
    local out=$1
    shift
    : >"$out"
    : >"$out.err"
    set -m # a group of its own, and Ctrl-C not ignored as in an ordinary background job
    setpriv --pdeathsig KILL "$PP" "$@" >"$out" 2>"$out.err" </dev/null 3>&- 4>&- &
    PP_PID=$!
    set +m
}

# end_of PID [SECONDS]: wait for a process that this shell started, within the limit (default 10);
# its exit code (128+n for a signal) into END_CODE.
end_of() {
    wait_for "${2:-10}" is_gone "$1" || return 1
    END_CODE=0
    wait "$1" 2>/dev/null || END_CODE=$?
}

# --- what must not be left ----------------------------------------------------------------------

memra_shm_entries() {
    find /dev/shm -mindepth 1 -maxdepth 1 -printf '%f\n' 2>/dev/null | sort
}

# New entries of this user in /dev/shm since memra_setup.
memra_shm_new() {
    local name
    comm -13 <(printf '%s\n' "$memra_shm_before") <(memra_shm_entries) | while read -r name; do
        [[ -n $name && -O /dev/shm/$name ]] && echo "$name"
    done
    return 0
}

# Everything in the run directory but the folder that programs keep there for the next run.
memra_run_entries() {
    find "$RUN_DIR" -mindepth 1 ! -path "$RUN_DIR/memra-pp" 2>/dev/null
}

memra_sockets() {
    grep -sF -- "$RUN_DIR" /proc/net/unix
}

nothing_left() {
    no_processes && [[ -z $(memra_run_entries) && -z $(memra_shm_new) && -z $(memra_sockets) ]]
}

# Fail, saying what, unless within SECONDS (default 2) no process of this test, no file or socket in
# its run directory and no new entry in /dev/shm is left.
assert_nothing_left() {
    wait_for "${1:-2}" nothing_left && return 0
    local pid
    {
        for pid in $(memra_processes); do
            printf 'left: process %s: %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline")"
        done
        memra_run_entries | sed 's/^/left: in the run directory: /'
        memra_shm_new | sed 's/^/left: in \/dev\/shm: /'
        memra_sockets | sed 's/^/left: socket: /'
    } >&2
    return 1
}

# The same for processes alone: files of a killed coordinator wait for the next start.
assert_no_processes() {
    wait_for "${1:-2}" no_processes
}
