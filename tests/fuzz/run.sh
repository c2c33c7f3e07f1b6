#!/bin/sh
# run.sh [SECONDS] [TARGET] - fuzz one target (gguf: tests/fuzz/gguf_fuzz.c) for SECONDS (60).
#
# Builds with clang's libFuzzer under ASan and UBSan into build/fuzz, makes the seeds with
# TARGET_seeds.c where there is one, and keeps the corpus in build/fuzz/TARGET.corpus. An input that
# breaks the target is left there as TARGET.crash-*; `build/fuzz/TARGET_replay FILE` runs it again.
# Without clang the seeds are only replayed, in a program built with cc, and that is said.
set -eu

seconds=${1:-60}
target=${2:-gguf}
case $seconds in
'' | *[!0-9]*) echo "run.sh: SECONDS is a whole number, not '$seconds'" >&2; exit 2 ;;
*[1-9]*) ;;
*) echo "run.sh: 0 SECONDS would be without an end; 1 at least" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
if [ ! -f "tests/fuzz/${target}_fuzz.c" ]; then
    echo "run.sh: no target '$target'; there are:" tests/fuzz/*_fuzz.c >&2
    exit 2
fi

out=build/fuzz
corpus=$out/$target.corpus
mkdir -p "$corpus"
flags="-std=gnu11 -g -O1 -D_GNU_SOURCE -I. -ffp-contract=off -fno-strict-aliasing
    -fsanitize=address,undefined -fno-sanitize-recover=undefined"
# What a target links: the files it needs, not all of common/, so that it builds alone.
file="common/status.c common/dtype.c common/gguf*.c"
libs=-lm
case $target in
gguf) sources="$file common/model*.c common/fmath.c" ;;
doors) sources="common/status.c common/door*.c common/fault.c" ;;
tokenizer)
    sources="$file coordinator/text/tokenizer*.c coordinator/text/pretokenize*.c coordinator/text/utf8.c
        tests/support/vocab_file.c tests/support/gguf_build.c tests/support/llama_build.c"
    libs="-lpcre2-8 -lm"
    ;;
*) sources="common/*.c" ;;
esac

# shellcheck disable=SC2086
cc $flags "tests/fuzz/${target}_fuzz.c" tests/fuzz/replay.c $sources $libs -o "$out/${target}_replay"
if [ -f "tests/fuzz/${target}_seeds.c" ]; then
    # shellcheck disable=SC2086
    cc $flags "tests/fuzz/${target}_seeds.c" tests/support/gguf_build.c tests/support/llama_build.c \
        $sources $libs -o "$out/${target}_seeds"
    "$out/${target}_seeds" "$corpus"
fi
if ! command -v clang >/dev/null 2>&1; then
    echo "run.sh: clang is not installed: the corpus is replayed, nothing is fuzzed" >&2
    exec "$out/${target}_replay" "$corpus"/*
fi
# shellcheck disable=SC2086
clang $flags -fsanitize=fuzzer "tests/fuzz/${target}_fuzz.c" $sources $libs -o "$out/${target}_fuzz"
set -- "-max_total_time=$seconds" -timeout=10 -rss_limit_mb=512 -malloc_limit_mb=64 \
    -max_len=16384 -print_final_stats=1 -verbosity=0 "-artifact_prefix=$out/$target."
if [ -f "tests/fuzz/$target.dict" ]; then set -- "$@" "-dict=tests/fuzz/$target.dict"; fi
exec "$out/${target}_fuzz" "$@" "$corpus"
