# faults.bash - what goes wrong around GPUs: each one clear line before work begins, or nothing lost.
# Sourced by run.sh; needs: pp, root, work, check, alone, has_second.

# refuses CODE PATTERN COMMAND..: that exit code, and one error line like PATTERN.
refuses() {
    local want=$1 pattern=$2 code=0 out
    shift 2
    out=$("$pp" "$@" 2>&1) || code=$?
    printf '%s\n' "$out"
    ((code == want)) && [[ $(grep -c 'error:' <<<"$out") == 1 ]] && grep "$pattern" <<<"$out"
}

gpu_memory() { # bytes in use on each GPU, as the driver lists it
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits
}

live() { # PID..: one of them lives; the dead may wait for a parent to ask
    ps -o stat= -p "$(IFS=, && echo "$*")" | grep -qv '^Z'
}

# nothing_stays VICTIM: killed with prompts and decode steps in flight, whoever it is, nothing is left
# after the end: no process, no memory on a GPU, nothing in /dev/shm. VICTIM: coordinator, or all at once.
nothing_stays() {
    local victim=$1 shm before pid pids i
    shm=$(ls /dev/shm)
    before=$(gpu_memory)
    "$pp" bench --shape 1b --type q8_0 --stages 2 --devices 0,0 -p 2048 -n 500 -r 20 >/dev/null 2>&1 &
    pid=$!
    for ((i = 0; i < 200; i++)); do
        "$pp" status "$pid" 2>/dev/null | grep -q ': ready' && break
        sleep 0.1
    done
    sleep 0.5
    mapfile -t pids < <(echo "$pid" && pgrep -P "$pid")
    [[ ${#pids[@]} == 3 && $(gpu_memory) != "$before" ]] || {
        echo "no run of two stages: ${pids[*]}"
        return 1
    }
    if [[ $victim == coordinator ]]; then kill -9 "$pid"; else kill -9 "${pids[@]}"; fi
    wait "$pid" 2>/dev/null
    for ((i = 0; i < 40; i++)); do
        [[ $(gpu_memory) == "$before" ]] && ! live "${pids[@]}" && break
        sleep 0.1
    done
    ! live "${pids[@]}" || { echo "one of ${pids[*]} lives" && return 1; }
    [[ $(gpu_memory) == "$before" ]] || { echo "MiB in use: $(gpu_memory), before: $before" && return 1; }
    # What CUDA left of killed processes goes with the next start.
    "$pp" run -p Once -n 1 --devices 0 >/dev/null 2>&1 || return 1
    [[ $(ls /dev/shm) == "$shm" ]] || { echo "/dev/shm: $(ls /dev/shm)" && return 1; }
    echo "nothing left after $((i / 10)).$((i % 10)) s"
}

# The devices that a run names are those that CUDA_VISIBLE_DEVICES put there, by UUID.
visible_order() {
    local order uuid=() pid seen i
    mapfile -t uuid < <(nvidia-smi --query-gpu=uuid --format=csv,noheader)
    for order in 0,1 1,0; do
        CUDA_VISIBLE_DEVICES=$order "$pp" bench --shape 1b --type q8_0 --stages 2 --devices 0,1 \
            -p 64 -n 500 -r 50 >/dev/null 2>&1 &
        pid=$!
        for ((i = 0; i < 200; i++)); do
            "$pp" status "$pid" 2>/dev/null | grep -q ': ready' && break
            sleep 0.1
        done
        seen=$("$pp" status "$pid" | grep -o 'GPU-[0-9a-f-]*' | paste -sd,)
        kill "$pid"
        wait "$pid" 2>/dev/null
        [[ $seen == "${uuid[${order%,*}]},${uuid[${order#*,}]}" ]] || {
            echo "CUDA_VISIBLE_DEVICES=$order: $seen, not as in ${uuid[*]}"
            return 1
        }
    done
    echo "the UUIDs asked for, in both orders"
}

faults() {
    local fn=(bash -c '"$0" "$@"') # timeout runs programs, not functions
    export pp
    export -f refuses gpu_memory live nothing_stays visible_order
    local once=(run -p Once -n 1)
    check "no such device" 30 "${fn[@]}" refuses 4 'no such CUDA device; devices here: .*cuda:0' \
        "${once[@]}" --devices 99
    check "a KV cache that does not fit" 30 "${fn[@]}" refuses 4 'would fit\|does not fit' bench --devices 0 \
        --shape layers=2,embd=512,ff=512,heads=8,kv-heads=8,vocab=512 -p 1 -n 1 --ctx 1000000 --sessions 100
    check "NCCL between stages of one GPU" 30 "${fn[@]}" refuses 2 'nccl needs two devices' \
        "${once[@]}" --stages 2 --devices 0,0 --transport nccl
    check "IPC to a CPU" 30 "${fn[@]}" refuses 2 'ipc needs a CUDA device at both ends' "${once[@]}" \
        --stages 2 --devices 0,cpu --transport ipc
    alone "the coordinator killed at work" 60 "${fn[@]}" nothing_stays coordinator
    alone "everyone killed at work" 60 "${fn[@]}" nothing_stays all
    ! has_second || alone "CUDA_VISIBLE_DEVICES, both orders" 60 "${fn[@]}" visible_order
}
