#!/usr/bin/env bats
# tree.bats - what holds for every source file of the tree.

load ../support/common

rooms=(common kernels stage coordinator tests)

@test "no line of C or CUDA is wider than 100 columns, no file longer than 600 lines" {
    local wide long
    cd "$MEMRA_ROOT"
    wide=$(find "${rooms[@]}" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort |
        LC_ALL=C.UTF-8 xargs awk 'length > 100 { print FILENAME ":" FNR ": " length " columns" }')
    long=$(find "${rooms[@]}" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort |
        xargs wc -l | awk '$1 > 600 && $2 != "total" { print $2 ": " $1 " lines" }')
    [[ -z $wide$long ]] || { printf '%s\n' "$wide" "$long" >&2 && return 1; }
}

@test "imports go one way: common < kernels < stage, common < coordinator" {
    local wrong
    cd "$MEMRA_ROOT"
    wrong=$(grep -rnE '#include "(kernels|stage|coordinator|tests)/' common
        grep -rnE '#include "(stage|coordinator|tests)/' kernels
        grep -rnE '#include "(coordinator|tests)/' stage
        grep -rnE '#include "(stage|kernels/cuda|tests)/' coordinator) || true
    [[ -z $wrong ]] || { printf '%s\n' "$wrong" >&2 && return 1; }
}
