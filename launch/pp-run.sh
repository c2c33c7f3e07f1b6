#!/usr/bin/env bash
# pp-run.sh - from a fresh clone to running text: installs what is missing, builds what has changed,
# and becomes `memra-pp run`, so that signals and exit codes are that program's own.
set -euo pipefail

setup_root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
setup_name=pp-run
# shellcheck source=launch/setup.sh
source "$setup_root/launch/setup.sh"

usage() {
    cat <<'END'
usage: launch/pp-run.sh [--yes] [options of memra-pp run]

Installs the packages that are missing (Debian; asks first on a terminal), builds into build/release
what has changed, and runs memra-pp with the given options. Text goes to stdout, all else to stderr.

  --yes                 install without asking
  --help                this page; the program's own: build/release/bin/memra-pp run --help

  -m FILE               a GGUF model; without it the demo model through 2 stages. smollm2 and
                        gemma3-270m are downloaded once (launch/get-model.sh), also as --draft-model
  -p TEXT, -f FILE      the prompt; without both "Once upon a time"
  -i                    lines from the terminal, a session over turns
  -n N                  tokens to generate
  --stages N            stage processes (or MEMRA_PP_STAGES=N); with -m and without it: one
  --splits C1,..        the layers to cut before (or MEMRA_PP_SPLITS)
  --devices D0,..       a device for each stage (or MEMRA_PP_DEVICES); without it: auto

  launch/pp-run.sh
  MEMRA_PP_STAGES=3 MEMRA_PP_SPLITS=2,4 launch/pp-run.sh -m any.gguf -p "Once upon a time" --temp 0
END
}

# What the options say; a text that belongs to an option is never taken for one.
yes=no has_model=no has_prompt=no has_devices=no
given=() models=() # models: which of those given name one
while (($# > 0)); do
    value=no
    case $1 in
    --) break ;;
    --yes)
        yes=yes
        shift
        continue
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    -m | --model) has_model=yes value=yes models+=($((${#given[@]} + 1))) ;;
    --draft-model) value=yes models+=($((${#given[@]} + 1))) ;;
    --model=* | --draft-model=*)
        [[ $1 == --draft* ]] || has_model=yes
        models+=("${#given[@]}")
        ;;
    -p | --prompt | -f | --file) has_prompt=yes value=yes ;;
    -i | --interactive) has_prompt=yes ;;
    --prompt=* | --file=*) has_prompt=yes ;;
    --devices) has_devices=yes value=yes ;;
    --devices=*) has_devices=yes ;;
    -n | --stages | --ctx | --temp | --seed | --kv-type | --threads | --splits | --split) value=yes ;;
    --fault | --run-dir | --log-file | --log-level) value=yes ;;
    esac
    given+=("$1")
    shift
    if [[ $value == yes ]] && (($# > 0)); then
        given+=("$1")
        shift
    fi
done

setup_begin
setup_install "$yes" "${setup_packages_programs[@]}"
setup_build release OFF memra-pp memra-stage
# A plain word that is no file is the name of a model, or of none: get-model.sh lists them.
for i in "${models[@]}"; do
    [[ ${given[i]:-} =~ ^(--[a-z-]+=)?([A-Za-z0-9][A-Za-z0-9_-]*)$ ]] || continue
    option=${BASH_REMATCH[1]} name=${BASH_REMATCH[2]}
    [[ ! -e $name ]] || continue
    get=("$setup_root/launch/get-model.sh" "$name")
    [[ $yes == no ]] || get+=(--yes)
    file=$("${get[@]}")
    given[i]=$option$file
done

defaults=()
if [[ $has_model == no ]]; then
    defaults+=(-m "$setup_root/launch/demo/demo.gguf")
    defaults+=(--default-stages 2)
fi
[[ $has_prompt == yes ]] || defaults+=(-p 'Once upon a time')
[[ $has_devices == yes || -n ${MEMRA_PP_DEVICES:-} ]] || export MEMRA_PP_DEVICES=auto
setup_end
exec "$setup_root/build/release/bin/memra-pp" run "${defaults[@]}" "${given[@]}" "$@"
