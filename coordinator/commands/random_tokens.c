#include "coordinator/commands/random_tokens.h"

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void random_tokens(uint32_t *out, uint32_t n, uint32_t n_vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint32_t)(random_next(&seed) % n_vocab);
}
