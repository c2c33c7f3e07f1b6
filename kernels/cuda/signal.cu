/* One block each: the rows of a decode step are some 16 KB, and one block of 1024 threads moves
 * them in a few instructions per thread. */
#include "kernels/cuda/signal.h"

#include "kernels/cuda/common.cuh"

#define THREADS       1024
#define POISON_THREAD 32   /* of another warp than the one that spins */
#define LOOK_NS       20000 /* between two looks at host memory, which cost a microsecond each */

__device__ static uint64_t load_acquire(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ static void store_release(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ static uint64_t now_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ static void copy_block(void *to, const void *from, uint64_t bytes)
{
    uint64_t n16 = bytes / 16, n4 = bytes / 4;
    for (uint64_t i = threadIdx.x; i < n16; i += blockDim.x)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (uint64_t i = n16 * 4 + threadIdx.x; i < n4; i += blockDim.x)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

__global__ static void release_kernel(uint64_t *word, uint64_t value)
{
    store_release(word, value);
}

/* All threads of the block: what the wait came to. One thread looks at the word, and one of another
 * warp now and then at the poison, so that neither slows the other. */
__device__ static uint64_t wait_block(const signal_wait &w)
{
    __shared__ uint64_t outcome;
    __shared__ int ended;
    volatile int *ended_now = &ended;
    if (threadIdx.x == 0) ended = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t v = load_acquire(w.word);
        while (w.spin && v != w.want && v != signal_poisoned(w.want) && *ended_now == 0)
            v = load_acquire(w.word);
        outcome = v == w.want ? v : signal_poisoned(w.want);
        *ended_now = 1;
    } else if (threadIdx.x == POISON_THREAD && w.spin) {
        uint64_t looked = now_ns();
        while (*ended_now == 0) {
            if (now_ns() - looked < LOOK_NS) continue;
            if (load_acquire(w.poison) == w.want >> 32) *ended_now = 1;
            looked = now_ns();
        }
    }
    __syncthreads();
    return outcome;
}

__global__ static void take_kernel(signal_wait w, void *to, const void *from, uint64_t bytes,
                                   uint64_t *valid)
{
    uint64_t outcome = wait_block(w);
    if (outcome == w.want) copy_block(to, from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) store_release(valid, outcome);
}

/* --- lines ---------------------------------------------------------------------------------- */

struct words {
    uint64_t a, b;
};

__device__ static words load_line(const void *line)
{
    words w;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(w.a), "=l"(w.b)
                 : "l"(line)
                 : "memory");
    return w;
}

__device__ static void store_line(void *line, uint32_t flag, uint32_t a, uint32_t b)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(line),
                 "l"(came_word(flag, a)), "l"(came_word(flag, b))
                 : "memory");
}

__device__ static char *line_at(const signal_lane &l, uint32_t i)
{
    return (char *)l.line + (uint64_t)i * SIGNAL_LINE_BYTES;
}

/* Two lines from 16 bytes; the message's bytes in one pass of the block, as far as a decode step
 * goes. */
__global__ static void __launch_bounds__(THREADS)
    send_kernel(const signal_lane l, const uint4 *from, uint32_t n_pairs, const signal_rows r)
{
    kernel_begin();
    if (r.came != nullptr && r.came->gone != 0) return;
    if (l.beside) __threadfence_system(); /* what was copied goes first */
    for (uint32_t i = threadIdx.x; i < n_pairs; i += THREADS) {
        uint4 v = from[i];
        store_line(line_at(l, 2 * i), l.flag, v.x, v.y);
        store_line(line_at(l, 2 * i + 1), l.flag, v.z, v.w);
    }
    for (uint32_t i = threadIdx.x; i < r.n_rows; i += THREADS) {
        uint32_t bad = r.finite != nullptr ? r.finite[i] : 0;
        came_row row = came_leaves(r.came->row[i], r.tokens[i], r.live[i], bad, r.mark);
        store_line(line_at(l, 2 * n_pairs + i), l.flag, row.token, came_state(row));
    }
}

/* The threads of a catching block: those that take the bytes, those that take a row each, and a
 * warp of which one thread looks for the poison until all others are done. */
#define CATCHERS  512
#define ROWS_AT   CATCHERS
#define POISON_AT (ROWS_AT + CAME_ROWS)
#define CATCHING  (POISON_AT + 32)
#define AT_ONCE   4 /* lines that a thread waits for together */

struct catching {
    int ended;
    uint32_t n_done; /* warps */
};

/* n lines from i on, two by two, CATCHERS pairs apart; false: the poison came first. */
__device__ static bool catch_lines(const signal_lane &l, uint32_t i, uint32_t n,
                                   const volatile catching *c, words w[AT_ONCE])
{
    for (;;) {
        bool all = true;
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++)
            if (k < n) w[k] = load_line(line_at(l, i + k / 2 * 2 * CATCHERS + k % 2));
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++)
            all = all && (k >= n || (w[k].a >> 32 == l.flag && w[k].b >> 32 == l.flag));
        if (all) return true;
        if (c->ended != 0) return false;
    }
}

__device__ static bool catch_bytes(const signal_lane &l, uint4 *to, uint32_t n_pairs,
                                   const volatile catching *c)
{
    for (uint32_t p = threadIdx.x; p < n_pairs; p += 2 * CATCHERS) {
        words w[AT_ONCE];
        bool two = p + CATCHERS < n_pairs;
        if (!catch_lines(l, 2 * p, two ? 4 : 2, c, w)) return false;
        to[p] = make_uint4((uint32_t)w[0].a, (uint32_t)w[0].b, (uint32_t)w[1].a, (uint32_t)w[1].b);
        if (two)
            to[p + CATCHERS] = make_uint4((uint32_t)w[2].a, (uint32_t)w[2].b, (uint32_t)w[3].a,
                                          (uint32_t)w[3].b);
    }
    return true;
}

__device__ static void look_for_poison(const uint64_t *poison, uint64_t epoch, volatile catching *c)
{
    uint64_t looked = now_ns();
    while (c->n_done < POISON_AT / 32 && c->ended == 0) {
        if (now_ns() - looked < LOOK_NS) continue;
        if (load_acquire(poison) == epoch) c->ended = 1;
        looked = now_ns();
    }
}

/* What a row's line says waits for the verdict on all lines. */
__global__ static void __launch_bounds__(CATCHING)
    catch_kernel(const signal_lane l, const uint64_t *poison, uint64_t value, uint4 *to,
                 uint32_t n_pairs, const signal_rows r, uint64_t *valid)
{
    __shared__ catching c;
    uint32_t t = threadIdx.x, row = t - ROWS_AT;
    bool takes_row = t >= ROWS_AT && row < r.n_rows, missing = false;
    words w[AT_ONCE] = {};
    kernel_begin();
    if (t == 0) c = {0, 0};
    __syncthreads();
    if (t < CATCHERS)
        missing = !catch_bytes(l, to, n_pairs, &c);
    else if (takes_row)
        missing = !catch_lines(l, 2 * n_pairs + row, 1, &c, w);
    else if (t == POISON_AT)
        look_for_poison(poison, value >> 32, &c);
    __syncwarp();
    if (t < POISON_AT && t % 32 == 0) atomicAdd(&c.n_done, 1);
    bool gone = __syncthreads_or(missing);
    if (takes_row) {
        came_row came = gone ? came_row{0, 0, 0} : came_row_of((uint32_t)w[0].a, (uint32_t)w[0].b);
        r.tokens[row] = came.token;
        r.live[row] = (uint8_t)came.live;
        r.came->row[row] = came;
    }
    if (t == 0 && r.came != nullptr) r.came->gone = gone;
    if (l.beside) __threadfence_system(); /* what is copied next has come */
    if (valid != nullptr && t == 0) store_release(valid, gone ? signal_poisoned(value) : value);
}

cudaError_t cuda_signal_send(cudaStream_t s, const signal_lane *l, const void *from, uint64_t bytes,
                             const signal_rows *r)
{
    return start(send_kernel, 1, THREADS, 0, s, *l, (const uint4 *)from, (uint32_t)(bytes / 16),
                 *r);
}

cudaError_t cuda_signal_catch(cudaStream_t s, const signal_lane *l, const uint64_t *poison,
                              uint64_t value, void *to, uint64_t bytes, const signal_rows *r,
                              uint64_t *valid)
{
    return start(catch_kernel, 1, CATCHING, 0, s, *l, poison, value, (uint4 *)to,
                 (uint32_t)(bytes / 16), *r, valid);
}

/* --- words ---------------------------------------------------------------------------------- */

__global__ static void wait_kernel(signal_wait w, uint64_t *out)
{
    uint64_t outcome = wait_block(w);
    if (threadIdx.x == 0) *out = outcome;
}

__global__ static void tell_kernel(const uint64_t *outcome, uint64_t *valid)
{
    store_release(valid, *outcome);
}

__global__ static void tell_value_kernel(uint64_t value, uint64_t *valid)
{
    store_release(valid, value);
}

cudaError_t cuda_signal_release(cudaStream_t s, uint64_t *word, uint64_t value)
{
    release_kernel<<<1, 1, 0, s>>>(word, value);
    return cudaGetLastError();
}

cudaError_t cuda_signal_take(cudaStream_t s, const signal_wait *w, void *to, const void *from,
                             uint64_t bytes, uint64_t *valid)
{
    take_kernel<<<1, THREADS, 0, s>>>(*w, to, from, bytes, valid);
    return cudaGetLastError();
}

cudaError_t cuda_signal_wait(cudaStream_t s, const signal_wait *w, uint64_t *outcome)
{
    wait_kernel<<<1, 2 * POISON_THREAD, 0, s>>>(*w, outcome);
    return cudaGetLastError();
}

cudaError_t cuda_signal_tell(cudaStream_t s, const uint64_t *outcome, uint64_t *valid)
{
    tell_kernel<<<1, 1, 0, s>>>(outcome, valid);
    return cudaGetLastError();
}

cudaError_t cuda_signal_tell_value(cudaStream_t s, uint64_t value, uint64_t *valid)
{
    tell_value_kernel<<<1, 1, 0, s>>>(value, valid);
    return cudaGetLastError();
}
