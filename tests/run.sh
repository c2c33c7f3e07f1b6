#!/usr/bin/env bash
# run.sh - everything that a clone can be tested with: installs what is missing, builds, runs every
# test under prove and every fuzzer for a while. The last line says what ran and how it ended.
set -euo pipefail

setup_root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
setup_name=tests
# shellcheck source=launch/setup.sh
source "$setup_root/launch/setup.sh"

usage() {
    cat <<'END'
usage: tests/run.sh [options]

  --yes               install missing packages without asking (without a terminal it never asks)
  --preset NAME       release (default), debug, asan or tsan
  --only PATTERN      only test files whose path, or whose source's (tests/unit/fence_test.c), matches
                      this extended regular expression
  --fuzz SECONDS      for each fuzzer (default 60; 0: none)
  --limit SECONDS     for each test file (default 600)
  -j N                test files at a time (default: the processors, 4 at most)
  --list              print the test files and stop
  --help              this page

Exit: 0 all green, 1 a test or the build failed, 2 usage, 4 packages cannot be installed.
Data in ../shared (or $MEMRA_SHARED) is used when it is there; tests that need it skip otherwise.
END
}

# Started in the background of a shell without job control, this has SIGINT (bit 1) ignored, and so
# would have what the tests interrupt; a shell cannot take that back, env can.
ignored=$(sed -n 's/^SigIgn:\t//p' /proc/$$/status)
if ((0x$ignored & 2)) && [[ -z ${started_again-} ]] && env --default-signal=INT true 2>/dev/null; then
    exec env --default-signal=INT started_again=yes bash "${BASH_SOURCE[0]}" "$@"
fi
unset started_again

yes=no preset=release only='' fuzz_s=60 limit_s=600 jobs=$(($(nproc) < 4 ? $(nproc) : 4)) list=no

# number OPTION VALUE LEAST
number() {
    [[ $2 =~ ^[0-9]{1,6}$ ]] && ((10#$2 >= $3)) ||
        setup_fail 2 "$1 '$2': a whole number from $3 to 999999, in decimal digits; see --help"
}

while (($# > 0)); do
    case $1 in
    --yes) yes=yes ;;
    --list) list=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    --preset | --only | --fuzz | --limit | -j)
        (($# > 1)) || setup_fail 2 "$1 needs a value; see --help"
        case $1 in
        --preset) preset=$2 ;;
        --only) only=$2 ;;
        --fuzz) fuzz_s=$2 ;;
        --limit) limit_s=$2 ;;
        -j) jobs=$2 ;;
        esac
        shift
        ;;
    *) setup_fail 2 "unknown option '$1'; see --help" ;;
    esac
    shift
done
[[ $preset =~ ^(release|debug|asan|tsan)$ ]] ||
    setup_fail 2 "--preset '$preset': release, debug, asan or tsan"
number --fuzz "$fuzz_s" 0
number --limit "$limit_s" 1
number -j "$jobs" 1
match=0
[[ '' =~ $only ]] 2>/dev/null || match=$?
((match < 2)) || setup_fail 2 "--only '$only': not an extended regular expression (a bare ( is \\()"

cd -- "$setup_root"
# A test program stands for its source: one left in the build folder by an older tree is not run.
files=()
declare -A source_of=()
shopt -s nullglob
for source in tests/unit/*_test.c tests/gpu/*_test.c; do
    program=build/$preset/bin/tests/$(basename "$source" .c)
    files+=("$program")
    source_of[$program]=$source
done
files+=(tests/e2e/*.bats tests/gates/*.bats tests/faults/*.bats)
((10#$fuzz_s == 0)) || files+=(tests/fuzz/*_fuzz.c)
chosen=()
for file in "${files[@]}"; do
    [[ $file =~ $only || ${source_of[$file]:-} =~ $only ]] && chosen+=("$file")
done
((${#chosen[@]} > 0)) || setup_fail 2 "--only '$only': no test file matches; --list shows all"
if [[ $list == yes ]]; then
    printf '%s\n' "${chosen[@]}"
    exit 0
fi

setup_begin
setup_install "$yes" "${setup_packages_tests[@]}"
setup_build "$preset" ON
export MEMRA_BUILD=$setup_root/build/$preset
export BATS_TEST_TIMEOUT=${BATS_TEST_TIMEOUT:-120}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# libzmq is not instrumented: what is seen of it is not ours to judge.
export TSAN_OPTIONS=${TSAN_OPTIONS:-"halt_on_error=1:suppressions='$setup_root/tests/support/tsan.supp'"}

began=$SECONDS result=PASS n_tests=0
log=$MEMRA_BUILD/tests.log
setup_say "${#chosen[@]} test files, $jobs at a time, preset $preset"
run_tap="bash tests/support/run_tap.sh $limit_s $fuzz_s"
prove --timer --failures --comments --jobs "$jobs" --exec "$run_tap" "${chosen[@]}" |
    tee "$log" || result=FAIL
# prove calls a run in which nothing ran, or everything was skipped, a success: here it is none.
totals=$(grep -o '^Files=[0-9]*, Tests=[0-9]*' "$log" || true)
n_tests=${totals##*=}
((${n_tests:-0} > 0)) || result='FAIL (no test ran)'

setup_say "$result: ${n_tests:-0} tests in ${#chosen[@]} files, $((SECONDS - began)) s," \
    "preset $preset"
[[ $result == PASS ]]
