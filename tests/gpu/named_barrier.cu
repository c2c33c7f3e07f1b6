// named_barrier.cu - a kernel without a race, for tests/gpu/run.sh to ask whether the racecheck
// that is there can tell: a part of a block meets at a barrier of its own; then all of it writes,
// meets, reads and meets again. Exit code 0: the sums are right.
#include <cstdio>

static constexpr unsigned THREADS = 512, PART = 256, WARPS = THREADS / 32, TURNS = 4;

static __global__ void meet_and_add(unsigned *sums)
{
    __shared__ unsigned word[WARPS];
    unsigned t = threadIdx.x, sum = 0;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        if (t < PART) asm volatile("bar.sync 10, %0;" ::"n"(PART) : "memory");
        if (t % 32 == 0) word[t / 32] = t + turn;
        __syncthreads();
        sum += word[(t + 7) % WARPS];
        __syncthreads();
    }
    sums[t] = sum;
}

int main()
{
    unsigned *sums, host[THREADS], n_wrong = 0;
    if (cudaMalloc(&sums, sizeof host) != cudaSuccess) {
        printf("1..0 # SKIP no CUDA device\n");
        return 0;
    }
    meet_and_add<<<1, THREADS>>>(sums);
    cudaError_t e = cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost);
    for (unsigned t = 0; t < THREADS; t++)
        n_wrong += host[t] != TURNS * ((t + 7) % WARPS * 32) + TURNS * (TURNS - 1) / 2;
    cudaFree(sums);
    printf("1..1\n%sok 1 - sums over a named barrier (%s)\n", n_wrong == 0 ? "" : "not ",
           cudaGetErrorString(e));
    return e != cudaSuccess || n_wrong > 0;
}
