#!/usr/bin/env bats
# What launch/pp-run.sh does before the program runs. Each test has a clone of its own (the scripts
# alone, in a folder with spaces) and a PATH of its own (tests/support/fake_tools.bash).
load ../support/common
load ../support/fake_tools

setup() {
    memra_setup
    export CLONE="$TEST_DIR/a clone"
    mkdir -p "$CLONE/launch/demo"
    cp "$MEMRA_ROOT"/launch/*.sh "$CLONE/launch/"
    fake_begin
}

teardown() {
    memra_teardown
}

# pp-run.sh with our PATH, no terminal; OUT and ERR are what it wrote, CODE its exit code.
pp() {
    CODE=0
    PATH=$FAKE "$FAKE/bash" "$CLONE/launch/pp-run.sh" "$@" \
        >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || CODE=$?
    OUT=$(<"$TEST_DIR/out")
    ERR=$(<"$TEST_DIR/err")
}

# The same on a terminal on which the first argument is typed; OUT has all that was shown.
pp_on_terminal() {
    local typed=$1 command
    shift
    script -qec true /dev/null >/dev/null 2>&1 || skip "no pseudo-terminal can be made here"
    command=$(printf '%q ' env "PATH=$FAKE" "$FAKE/bash" "$CLONE/launch/pp-run.sh" "$@")
    CODE=0
    OUT=$(printf '%s' "$typed" | script -qec "$command" /dev/null) || CODE=$?
}

called() {
    grep -qE -- "$1" "$CALLS"
}

not_called() {
    ! called "$1"
}

is() {
    [[ $1 == "$2" ]] || {
        printf 'got  : %s\nwant : %s\n' "$1" "$2" >&2
        return 1
    }
}

has() {
    [[ $1 == *"$2"* ]] || {
        printf 'got  : %s\nwith : %s\n' "$1" "$2" >&2
        return 1
    }
}

@test "help goes to stdout and does nothing else" {
    pp --help
    is "$CODE" 0
    has "$OUT" "usage: launch/pp-run.sh"
    has "$OUT" "--yes"
    is "$ERR" ""
    [[ ! -e $CLONE/build ]]
    [[ ! -s $CALLS ]]
}

@test "-m NAME is the model that get-model.sh keeps; -i brings no prompt of its own" {
    export XDG_CACHE_HOME=$TEST_DIR/cache
    local tool file=$XDG_CACHE_HOME/memra-pp/SmolLM2-135M-Instruct.Q4_1.gguf
    for tool in stat head; do
        ln -s "$(command -v "$tool")" "$FAKE/$tool"
    done
    mkdir -p "$XDG_CACHE_HOME/memra-pp"
    printf GGUF >"$file"
    truncate -s 98362432 "$file"
    pp -m smollm2 -i
    is "$CODE" 0
    has "$OUT" "[run][-m][$file][-i]"
    pp --model=smollm2 -p x
    is "$CODE" 0
    has "$OUT" "[run][--model=$file][-p][x]"
    pp -m any.gguf --draft-model smollm2 -p x
    is "$CODE" 0
    has "$OUT" "[run][-m][any.gguf][--draft-model][$file][-p][x]"
    fake python3 'exit 1'
    pp -m gemma3-270m
    is "$CODE" 4
    has "$ERR" "get-model: "
    not_called "run -m gemma"
    # A word that is none says which there are; a file of that name is a file.
    local word
    for word in "-m smollm3" "--model=smollm3" "--draft-model smollm3"; do
        # shellcheck disable=SC2086 # two words
        pp $word -p x
        is "$CODE" 2
        has "$ERR" "get-model: no model 'smollm3'; there are: smollm2, gemma3-270m"
        not_called "run .*smollm3"
    done
    cd "$TEST_DIR"
    touch smollm3
    pp -m smollm3 -p x
    is "$CODE" 0
    has "$OUT" "[run][-m][smollm3][-p][x]"
}

@test "without arguments: the demo model through 2 stages" {
    pp
    is "$CODE" 0
    has "$OUT" "stages=unset devices=auto"
    has "$OUT" "[run][-m][$CLONE/launch/demo/demo.gguf][--default-stages][2][-p][Once upon a time]"
    is "$ERR" "pp-run: configuring build/release
pp-run: building build/release"
    not_called '^apt-get'
    called '^cmake --preset release --fresh -DMEMRA_TESTS=OFF -G Ninja'
    called '^cmake --build .*build/release --parallel [0-9]+ --target memra-pp memra-stage'
}

@test "the second start configures nothing and says nothing" {
    pp
    : >"$CALLS"
    pp
    is "$CODE" 0
    is "$ERR" ""
    not_called '--preset'
    called '^cmake --build'
}

@test "a named model is run as the doors say" {
    local m
    for m in "-m any.gguf" "--model any.gguf" "--model=any.gguf"; do
        # shellcheck disable=SC2086 # two words
        pp $m
        has "$OUT" "stages=unset devices=auto"
        has "$OUT" "[run][-p][Once upon a time][${m// /][}]"
        [[ $OUT != *default-stages* ]]
    done
    MEMRA_PP_STAGES=3 pp -m any.gguf
    has "$OUT" "stages=3"
}

@test "a number of stages that is given is left alone" {
    MEMRA_PP_STAGES=3 pp
    has "$OUT" "stages=3"
    pp --stages 4
    has "$OUT" "stages=unset"
    has "$OUT" "[--stages][4]"
    pp --stages=4
    has "$OUT" "stages=unset"
}

@test "devices that are given are left alone" {
    MEMRA_PP_DEVICES=cpu,cpu pp
    has "$OUT" "devices=cpu,cpu"
    pp --devices cpu,cpu
    has "$OUT" "devices=unset"
    pp --devices=cpu,cpu
    has "$OUT" "devices=unset"
}

@test "a prompt that is given is the only one" {
    local p
    for p in "-p x" "--prompt x" "--prompt=x" "-f x" "--file x" "--file=x"; do
        # shellcheck disable=SC2086 # two words
        pp -m any.gguf $p
        has "$OUT" "[run][-m][any.gguf][${p// /][}]"
        [[ $OUT != *Once* ]]
    done
}

@test "a text that looks like an option is a text" {
    pp -p --help -n 3
    has "$OUT" "[-p][--help][-n][3]"
    pp -p --yes
    has "$OUT" "[-p][--yes]"
    pp -p -m
    has "$OUT" "[--default-stages][2]"
    pp -p "a  b
c" -f ""
    has "$OUT" "[-p][a  b
c][-f][]"
}

@test "what the script does not know is the program's to judge" {
    pp --nonsense -x 7 -- --yes --help
    is "$CODE" 0
    has "$OUT" "[--nonsense][-x][7][--][--yes][--help]"
    pp -n 3 --yes --json
    has "$OUT" "[-n][3][--json]"
    [[ $OUT != *yes* ]]
}

@test "exit codes go through" {
    local code
    for code in 0 1 2 5 130; do
        FAKE_EXIT=$code pp
        is "$CODE" "$code"
    done
}

@test "the script becomes the program: same process, signals untouched" {
    pp
    export FAKE_WAITS=1
    set -m
    PATH=$FAKE "$FAKE/bash" "$CLONE/launch/pp-run.sh" >"$TEST_DIR/out" 2>/dev/null </dev/null 3>&- &
    local pid=$!
    set +m
    wait_for 10 grep -q "^pid $pid\$" "$TEST_DIR/out"
    kill -TERM "$pid"
    end_of "$pid"
    is "$END_CODE" 143
}

@test "from any folder, through a symbolic link" {
    ln -s "$CLONE/launch/pp-run.sh" "$TEST_DIR/story"
    cd /
    CDPATH=/tmp PATH=$FAKE run "$FAKE/bash" "$TEST_DIR/story"
    is "$status" 0
    has "$output" "[$CLONE/launch/demo/demo.gguf]"
    cd "$CLONE/launch"
    PATH=$FAKE run "$FAKE/bash" ./pp-run.sh
    is "$status" 0
    has "$output" "[$CLONE/launch/demo/demo.gguf]"
}

@test "as root without a terminal missing packages are named and installed at once" {
    fake_missing libzmq3-dev cmake
    pp
    is "$CODE" 0
    has "$ERR" "pp-run: installing: cmake libzmq3-dev"
    has "$OUT" "[run]"
    called '^apt-get update'
    called '^apt-get install -y --no-install-recommends cmake libzmq3-dev --download-only'
    called '^apt-get install -y --no-install-recommends cmake libzmq3-dev$'
    not_called '^sudo'
}

@test "on a bare system every package is asked for" {
    fake_missing "${fake_packages[@]}"
    pp
    is "$CODE" 0
    has "$ERR" "pp-run: installing: build-essential cmake ninja-build pkg-config libzmq3-dev"
    has "$ERR" " libjansson-dev libhwloc-dev libpcre2-dev libedit-dev"
}

@test "make is as good as ninja" {
    fake_missing ninja-build
    fake make ''
    pp
    is "$CODE" 0
    not_called '^apt-get'
    called '^cmake --preset release --fresh -DMEMRA_TESTS=OFF -G Unix Makefiles'
}

@test "on a terminal it asks first: no" {
    fake_missing libjansson-dev
    pp_on_terminal $'n\n'
    is "$CODE" 4
    has "$OUT" "would install: libjansson-dev"
    has "$OUT" "install now? [Y/n]"
    has "$OUT" "nothing was installed; by hand: apt-get install "
    not_called '^apt-get'
    not_called '^cmake'
}

@test "on a terminal it asks first: yes, and an empty line" {
    local answer
    for answer in y Y yes ''; do
        fake_missing libjansson-dev
        : >"$CALLS"
        pp_on_terminal "$answer"$'\n'
        is "$CODE" 0
        has "$OUT" "installing: libjansson-dev"
        called '^apt-get install'
    done
}

@test "on a terminal with --yes it does not ask" {
    fake_missing libjansson-dev
    pp_on_terminal '' --yes
    is "$CODE" 0
    [[ $OUT != *"[Y/n]"* ]]
    called '^apt-get install'
}

@test "without root sudo is used" {
    fake_missing libhwloc-dev
    fake sudo 'while [[ $1 == -* ]]; do shift; done; exec "$@"'
    FAKE_UID=1000 pp
    is "$CODE" 0
    called '^sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install -y'
}

@test "without root and sudo: one line with the command" {
    fake_missing libhwloc-dev
    FAKE_UID=1000 pp
    is "$CODE" 4
    is "$OUT" ""
    is "$(wc -l <"$TEST_DIR/err")" 1
    has "$ERR" "as root: apt-get install --no-install-recommends libhwloc-dev"
    not_called '^apt-get'
}

@test "sudo that may not: the command, and what it said" {
    fake_missing libhwloc-dev
    fake sudo 'echo "sudo: a password is required"; exit 1'
    FAKE_UID=1000 pp
    is "$CODE" 4
    has "$ERR" "a password is required"
    has "$ERR" "by hand: sudo apt-get install --no-install-recommends libhwloc-dev"
}

@test "a system without apt-get is told the names" {
    fake_missing libhwloc-dev cmake
    rm "$FAKE/apt-get"
    pp
    is "$CODE" 4
    is "$(wc -l <"$TEST_DIR/err")" 1
    has "$ERR" "needs cmake libhwloc-dev"
}

@test "packages that cannot be had: the end of the log and a line" {
    fake_missing libzmq3-dev
    FAKE_APT_FAILS=update pp
    is "$CODE" 4
    has "$ERR" "E: no network"
    has "$ERR" "packages cannot be had; by hand: apt-get install"
    has "$ERR" "$CLONE/build/setup.log"
    is "$OUT" ""
    FAKE_APT_FAILS=install pp
    is "$CODE" 4
    pp
    is "$CODE" 0
}

@test "packages that were installed and do not help are named" {
    fake_missing libzmq3-dev
    fake apt-get ''
    pp
    is "$CODE" 4
    has "$ERR" "installed, but still missing: libzmq3-dev"
}

@test "a build that fails shows its log, on stderr only" {
    FAKE_BUILD_FAILS=1 pp
    is "$CODE" 1
    is "$OUT" ""
    has "$ERR" "error: no such luck"
    has "$ERR" "the build failed (all of it: $CLONE/build/release/log)"
    pp
    is "$CODE" 0
}

@test "a build folder that was copied from elsewhere is made anew" {
    pp
    sed -i 's|^CMAKE_HOME.*|CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere|' \
        "$CLONE/build/release/CMakeCache.txt"
    : >"$CALLS"
    pp
    is "$CODE" 0
    called '^cmake --preset release --fresh'
}

@test "Ctrl-C while configuring leaves nothing that the next start trips over" {
    export FAKE_CONFIGURE_WAITS=1
    set -m
    PATH=$FAKE "$FAKE/bash" "$CLONE/launch/pp-run.sh" >"$TEST_DIR/out" 2>&1 </dev/null 3>&- &
    local pid=$!
    set +m
    wait_for 10 test -e "$TEST_DIR/waiting"
    kill -INT -- "-$pid"
    end_of "$pid"
    is "$END_CODE" 130
    [[ ! -e $CLONE/build/release/.configured ]]
    unset FAKE_CONFIGURE_WAITS
    pp
    is "$CODE" 0
    has "$OUT" "[run]"
}

@test "two starts at once: one builds, the other waits for it" {
    export FAKE_CONFIGURE_WAITS=1
    set -m
    PATH=$FAKE "$FAKE/bash" "$CLONE/launch/pp-run.sh" >"$TEST_DIR/first" 2>&1 </dev/null 3>&- &
    local first=$!
    wait_for 10 test -e "$TEST_DIR/waiting"
    unset FAKE_CONFIGURE_WAITS
    PATH=$FAKE "$FAKE/bash" "$CLONE/launch/pp-run.sh" >"$TEST_DIR/second" 2>&1 </dev/null 3>&- &
    local second=$!
    set +m
    wait_for 10 grep -q "waiting for another build" "$TEST_DIR/second"
    kill -INT -- "-$first"
    end_of "$first"
    end_of "$second"
    is "$END_CODE" 0
    grep -qF '[run]' "$TEST_DIR/second"
}

@test "a folder that cannot be written is named" {
    touch "$CLONE/build"
    pp
    is "$CODE" 4
    has "$ERR" "cannot write to $CLONE/build/release"
    is "${ERR//$'\n'/}" "$ERR"
    rm "$CLONE/build"
    mkdir -p "$CLONE/build/release/.lock" # a folder of somebody else's refuses it likewise
    pp
    is "$CODE" 4
    has "$ERR" "cannot write to $CLONE/build/release"
    is "${ERR//$'\n'/}" "$ERR"
}
