# setup.sh - what launch/pp-run.sh and tests/run.sh share: which packages a clone needs, installing
# what is missing, building. A library for bash: sourced, never run.
#
# The caller sets setup_name (the word before each line) and setup_root (the clone's absolute path),
# and has called setup_begin. Everything goes to stderr or into a log; a function that cannot go on
# prints a line that says what would help and ends the script (1: build, 4: packages or disk).
#
# Ctrl-C is safe at any moment: packages are downloaded first and then installed with the signal
# held back; a build folder counts as configured only when its stamp was written; the build tool
# knows what it had finished.
# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # setup_name, setup_root are the caller's; it uses the lists

setup_packages_programs=(build-essential cmake ninja-build pkg-config libzmq3-dev libjansson-dev
    libhwloc-dev libpcre2-dev libedit-dev)
setup_packages_tests=("${setup_packages_programs[@]}" libcmocka-dev bats perl procps clang
    libclang-rt-dev)

setup_say() {
    printf '%s: %s\n' "$setup_name" "$*" >&2
}

setup_fail() {
    local code=$1
    shift
    setup_say "$*"
    exit "$code"
}

setup_begin() {
    trap 'trap - INT; kill -INT $$' INT
    trap 'trap - TERM; kill -TERM $$' TERM
}

# Undo setup_begin before exec: a trap would come back as the default, an ignored signal would not.
setup_end() {
    trap - INT TERM
}

setup_have() {
    command -v "$1" >/dev/null 2>&1
}

# True when what the package is needed for is there, wherever it came from.
setup_present() {
    case $1 in
    build-essential)
        setup_have cc && cc -E -x c - <<<'#include <stdio.h>' >/dev/null 2>&1
        ;;
    ninja-build) setup_have ninja || setup_have make ;;
    libzmq3-dev) pkg-config --exists 'libzmq >= 4.3' 2>/dev/null ;;
    libjansson-dev) pkg-config --exists 'jansson >= 2.13' 2>/dev/null ;;
    libhwloc-dev) pkg-config --exists 'hwloc >= 2.3' 2>/dev/null ;;
    libedit-dev) pkg-config --exists 'libedit >= 3.1' 2>/dev/null ;;
    libpcre2-dev) pkg-config --exists 'libpcre2-8 >= 10.32' 2>/dev/null ;;
    libcmocka-dev) pkg-config --exists cmocka 2>/dev/null ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
    perl) setup_have prove ;;
    procps) setup_have pkill ;;
    libclang-rt-dev)
        setup_have clang && compgen -G "$(clang --print-runtime-dir)/*fuzzer*" >/dev/null
        ;;
    *) setup_have "$1" ;;
    esac
}

# The packages among "$@" that are missing, on one line.
setup_missing() {
    local package missing=()
    for package; do
        setup_present "$package" || missing+=("$package")
    done
    printf '%s' "${missing[*]}"
}

setup_on_terminal() {
    [[ -t 0 && -t 2 ]]
}

# Install what is missing of "${@:2}"; $1 is "yes" when nobody is to be asked.
setup_install() {
    local yes=$1 missing answer
    local -a packages as_root=()
    shift
    missing=$(setup_missing "$@")
    [[ -n $missing ]] || return 0
    read -ra packages <<<"$missing"
    setup_have apt-get || setup_fail 4 "needs $missing (Debian's names): no apt-get here," \
        "install them with this system's package manager and start again"
    local by_hand="apt-get install --no-install-recommends $missing"
    if [[ $(id -u) != 0 ]]; then
        setup_have sudo || setup_fail 4 "needs packages, and there is neither root nor sudo;" \
            "as root: $by_hand"
        as_root=(sudo)
        setup_on_terminal || as_root=(sudo -n)
        by_hand="sudo $by_hand"
    fi
    if setup_on_terminal && [[ $yes != yes ]]; then
        setup_say "would install: $missing"
        printf '%s: install now? [Y/n] ' "$setup_name" >&2
        read -r answer || answer=no
        [[ $answer =~ ^([yY]|[yY][eE][sS]|)$ ]] ||
            setup_fail 4 "nothing was installed; by hand: $by_hand"
    fi
    setup_say "installing: $missing"
    setup_apt "$by_hand" "${packages[@]}"
    missing=$(setup_missing "$@")
    [[ -z $missing ]] || setup_fail 4 "installed, but still missing: $missing"
}

# as_root is setup_install's.
setup_apt() {
    local by_hand=$1 log=$setup_root/build/setup.log
    shift
    mkdir -p "$setup_root/build" || setup_fail 4 "cannot write to $setup_root/build"
    local -a apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
    local -a install=(install -y --no-install-recommends "$@")
    {
        "${apt[@]}" update </dev/null && "${apt[@]}" "${install[@]}" --download-only </dev/null
    } >"$log" 2>&1 || setup_show_log "$log" 4 "packages cannot be had; by hand: $by_hand"
    # The part that a Ctrl-C could leave half done.
    trap '' INT TERM
    "${apt[@]}" "${install[@]}" </dev/null >>"$log" 2>&1 ||
        setup_show_log "$log" 4 "packages cannot be installed; by hand: $by_hand"
    setup_begin
}

# The end of a log, then the reason and the code to end with.
setup_show_log() {
    local log=$1 code=$2
    shift 2
    tail -n 40 "$log" >&2
    setup_fail "$code" "$* (all of it: $log)"
}

# A value of the build folder's cache.
setup_cached() {
    [[ -e $1/CMakeCache.txt ]] || return 0
    sed -n "s/^$2:[A-Z]*=//p" "$1/CMakeCache.txt"
}

# The build tool of a configured folder, empty when that tool is not here.
setup_tool() {
    case $(setup_cached "$1" CMAKE_GENERATOR) in
    Ninja) ! setup_have ninja || echo ninja ;;
    'Unix Makefiles') ! setup_have make || echo make ;;
    esac
}

# Configure build/PRESET unless it is; TESTS is ON or OFF, and tests that are on stay on.
setup_configure() {
    local preset=$1 tests=$2 dir=$setup_root/build/$1 home
    local -a options=(--preset "$preset")
    home=$(setup_cached "$dir" CMAKE_HOME_DIRECTORY)
    if [[ $home != "$setup_root" || -z $(setup_tool "$dir") ]]; then
        # New, copied from elsewhere, or made by a tool that is gone.
        options+=(--fresh "-DMEMRA_TESTS=$tests")
        if setup_have ninja; then options+=(-G Ninja); else options+=(-G 'Unix Makefiles'); fi
    elif [[ $tests == ON && $(setup_cached "$dir" MEMRA_TESTS) != ON ]]; then
        options+=(-DMEMRA_TESTS=ON)
    elif [[ -e $dir/.configured ]]; then
        return 0
    fi
    setup_say "configuring build/$preset"
    rm -f "$dir/.configured"
    (cd -- "$setup_root" && exec cmake "${options[@]}") </dev/null >"$dir/log" 2>&1 9>&- ||
        setup_show_log "$dir/log" 1 "configuring failed"
    : >"$dir/.configured"
}

# The build tool's output passed through; says "building" once there is something to compile.
setup_watch_build() {
    local line said=no
    while IFS= read -r line; do
        printf '%s\n' "$line"
        if [[ $said == no && $line == *'Building C object'* ]]; then
            setup_say "building $1"
            said=yes
        fi
    done
}

# Build the targets "${@:2}" (all when none) of build/PRESET.
setup_make() {
    local preset=$1 dir=$setup_root/build/$1
    shift
    local -a options=(--build "$dir" --parallel "$(nproc)")
    (($# == 0)) || options+=(--target "$@")
    cmake "${options[@]}" </dev/null 2>&1 9>&- | setup_watch_build "build/$preset" >"$dir/log" ||
        setup_show_log "$dir/log" 1 "the build failed"
}

# Configure and build, one script at a time per folder.
setup_build() {
    local preset=$1 tests=$2 dir=$setup_root/build/$1
    shift 2
    mkdir -p "$dir" 2>/dev/null && { : >>"$dir/.lock"; } 2>/dev/null ||
        setup_fail 4 "cannot write to $dir; a clone of your own can be built"
    {
        if setup_have flock && ! flock -n 9; then
            setup_say "waiting for another build of build/$preset"
            flock 9
        fi
        setup_configure "$preset" "$tests"
        setup_make "$preset" "$@"
    } 9>"$dir/.lock"
}
