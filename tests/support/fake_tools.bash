# fake_tools.bash - a PATH of small fakes for tests of the set-up scripts, without network or root:
# package tools, compiler, cmake, ninja, and the program that the "build" makes. Each writes its
# name and arguments into $CALLS. $FAKE is the PATH; $FAKE_HAVE has a file for each "installed"
# package. The clone whose scripts are tested is $CLONE.
#
# What a test can set: FAKE_UID (what id says; 0), FAKE_APT_FAILS (update or install),
# FAKE_BUILD_FAILS, FAKE_CONFIGURE_WAITS (until killed), FAKE_EXIT (the program's code), FAKE_WAITS
# (the program stays).
# shellcheck shell=bash
# shellcheck disable=SC2119,SC2120 # fake_missing without arguments: all are installed

fake_packages=(build-essential cmake ninja-build pkg-config libzmq3-dev libjansson-dev libhwloc-dev
    libpcre2-dev libedit-dev)

# A new PATH with every package installed.
fake_begin() {
    export FAKE=$TEST_DIR/bin FAKE_HAVE=$TEST_DIR/have CALLS=$TEST_DIR/calls
    export FAKE_LIBRARY=$MEMRA_ROOT/tests/support/fake_tools.bash
    mkdir -p "$FAKE" "$FAKE_HAVE"
    : >"$CALLS"
    local tool
    for tool in bash cat chmod dirname env flock grep ln mkdir nproc readlink rm sed sleep tail \
        touch; do
        ln -s "$(command -v "$tool")" "$FAKE/$tool"
    done
    fake id
    fake apt-get
    fake_missing
}

# Every package but those named is installed.
fake_missing() {
    local package
    rm -f "$FAKE_HAVE"/* "$FAKE"/{cc,cmake,ninja,pkg-config}
    for package in "${fake_packages[@]}"; do
        [[ " $* " == *" $package "* ]] || touch "$FAKE_HAVE/$package"
    done
    fake_installed
}

# Put the tools of the installed packages into the PATH.
fake_installed() {
    [[ ! -e $FAKE_HAVE/build-essential ]] || fake cc
    [[ ! -e $FAKE_HAVE/cmake ]] || fake cmake
    [[ ! -e $FAKE_HAVE/ninja-build ]] || fake ninja
    [[ ! -e $FAKE_HAVE/pkg-config ]] || fake pkg-config
}

# fake NAME [LINE]: a program that records its call and then does LINE; without it, run_NAME below.
fake() {
    cat >"$FAKE/$1" <<END
#!$FAKE/bash
set -euo pipefail
source "\$FAKE_LIBRARY"
printf '%s\n' "$1 \$*" >>"\$CALLS"
${2-run_$1 \"\$@\"}
END
    chmod +x "$FAKE/$1"
}

run_id() {
    echo "${FAKE_UID:-0}"
}

run_apt-get() {
    if [[ $1 == "${FAKE_APT_FAILS:-}" ]]; then
        echo "E: no network"
        exit 100
    fi
    [[ $1 == install && $* != *--download-only* ]] || return 0
    local word
    for word; do touch "$FAKE_HAVE/$word"; done
    fake_installed
}

run_cc() {
    :
}

run_make() {
    :
}

run_ninja() {
    :
}

run_pkg-config() {
    case $* in
    *libzmq*) [[ -e $FAKE_HAVE/libzmq3-dev ]] ;;
    *jansson*) [[ -e $FAKE_HAVE/libjansson-dev ]] ;;
    *pcre2*) [[ -e $FAKE_HAVE/libpcre2-dev ]] ;;
    *libedit*) [[ -e $FAKE_HAVE/libedit-dev ]] ;;
    *hwloc*) [[ -e $FAKE_HAVE/libhwloc-dev ]] ;;
    esac
}

run_cmake() {
    local dir=$CLONE/build/release
    echo "noise of cmake"
    case $* in
    *--preset*)
        if [[ -n ${FAKE_CONFIGURE_WAITS:-} ]]; then
            touch "$TEST_DIR/waiting"
            exec sleep 60
        fi
        printf 'CMAKE_HOME_DIRECTORY:INTERNAL=%s\nCMAKE_GENERATOR:INTERNAL=Ninja\n' "$CLONE" \
            >"$dir/CMakeCache.txt"
        ;;
    *--build*)
        if [[ -n ${FAKE_BUILD_FAILS:-} ]]; then
            echo "x.c:1: error: no such luck"
            exit 2
        fi
        [[ -e $dir/bin/memra-pp ]] || echo "[1/2] Building C object x.c.o"
        mkdir -p "$dir/bin"
        fake memra-pp
        ln -sf "$FAKE/memra-pp" "$dir/bin/memra-pp"
        ;;
    esac
}

run_memra-pp() {
    printf 'stages=%s devices=%s\n' "${MEMRA_PP_STAGES:-unset}" "${MEMRA_PP_DEVICES:-unset}"
    printf '[%s]' "$@"
    printf '\npid %s\n' "$$"
    [[ -z ${FAKE_WAITS:-} ]] || exec sleep 60
    exit "${FAKE_EXIT:-0}"
}
