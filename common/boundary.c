#include "common/boundary.h"

#include "common/clock.h"
#include "common/shm.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A waiter looks this often before it sleeps: a neighbour that is about to announce is met without
 * two system calls. Short, because stages may share one core. */
#define SPINS_BEFORE_SLEEP 200u

static uint64_t round_line(uint64_t n)
{
    return (n + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static uint64_t slot_bytes(uint32_t rows_max, uint32_t n_embd, uint32_t aux_bytes)
{
    return sizeof(slot_header) + round_line((uint64_t)rows_max * sizeof(row_header)) +
           round_line((uint64_t)rows_max * n_embd * sizeof(float)) +
           round_line((uint64_t)rows_max * aux_bytes);
}

static uint64_t talk_offset(void)
{
    return round_line(sizeof(boundary_header)) +
           BOUNDARY_BANKS * BOUNDARY_SLOTS * sizeof(slot_words);
}

static uint64_t lanes_offset(void)
{
    return talk_offset() + BOUNDARY_BANKS * sizeof(boundary_talk);
}

static uint64_t slots_offset(void)
{
    return lanes_offset() + BOUNDARY_BANKS * sizeof(boundary_lanes);
}

uint64_t boundary_bytes(uint32_t rows_max, uint32_t n_embd, uint32_t aux_bytes)
{
    return slots_offset() +
           BOUNDARY_BANKS * BOUNDARY_SLOTS * slot_bytes(rows_max, n_embd, aux_bytes);
}

uint64_t boundary_row_bytes(uint32_t n_embd, uint32_t aux_bytes)
{
    return sizeof(row_header) + (uint64_t)n_embd * sizeof(float) + aux_bytes;
}

bool boundary_valid(const boundary_header *h, uint64_t bytes)
{
    return bytes >= sizeof *h && h->magic == BOUNDARY_MAGIC && h->version == BOUNDARY_VERSION &&
           h->rows_max > 0 && h->aux_bytes % 4 == 0 &&
           h->slot_bytes == slot_bytes(h->rows_max, h->n_embd, h->aux_bytes) &&
           h->slots_offset == slots_offset() &&
           h->bytes == boundary_bytes(h->rows_max, h->n_embd, h->aux_bytes) && h->bytes == bytes;
}

status boundary_create(int *fd, uint32_t rows_max, uint32_t n_embd, uint32_t aux_bytes, errmsg *e)
{
    void *map = NULL;
    uint64_t bytes = boundary_bytes(rows_max, n_embd, aux_bytes);
    TRY(shm_create(fd, &map, "boundary", bytes, e));
    *(boundary_header *)map =
        (boundary_header){.magic = BOUNDARY_MAGIC,
                          .version = BOUNDARY_VERSION,
                          .rows_max = rows_max,
                          .n_embd = n_embd,
                          .aux_bytes = aux_bytes,
                          .slot_bytes = slot_bytes(rows_max, n_embd, aux_bytes),
                          .slots_offset = slots_offset(),
                          .bytes = bytes};
    shm_unmap(map, bytes);
    return ST_OK;
}

static slot_words *words_of(const boundary_end *b, uint32_t slot)
{
    CHECK(slot < BOUNDARY_SLOTS);
    slot_words *w = (slot_words *)((char *)b->map + round_line(sizeof(boundary_header)));
    return &w[(b->epoch % BOUNDARY_BANKS) * BOUNDARY_SLOTS + slot];
}

static void view_of(const boundary_end *b, uint32_t slot, slot_view *out)
{
    uint64_t slot_i = (b->epoch % BOUNDARY_BANKS) * BOUNDARY_SLOTS + slot;
    char *at = (char *)b->map + b->slots_offset + slot_i * b->slot_bytes;
    out->header = (slot_header *)at;
    at += sizeof(slot_header);
    out->rows = (row_header *)at;
    at += round_line((uint64_t)b->rows_max * sizeof(row_header));
    out->hidden = b->n_embd != 0 ? (float *)at : NULL;
    at += round_line((uint64_t)b->rows_max * b->n_embd * sizeof(float));
    out->aux = b->aux_bytes != 0 ? (unsigned char *)at : NULL;
}

status boundary_open(boundary_end *out, int fd, uint32_t epoch, const _Atomic uint32_t *stop,
                     errmsg *e)
{
    void *map = NULL;
    uint64_t bytes = 0;
    *out = (boundary_end){0};
    TRY(shm_map(&map, &bytes, "boundary", fd, e));
    const boundary_header *h = map;
    if (!boundary_valid(h, bytes)) {
        shm_unmap(map, bytes);
        return errmsg_set(e, ST_PROTOCOL, "boundary: not a layout of this build");
    }
    *out = (boundary_end){.map = map,
                          .rows_max = h->rows_max,
                          .n_embd = h->n_embd,
                          .aux_bytes = h->aux_bytes,
                          .slot_bytes = h->slot_bytes,
                          .slots_offset = h->slots_offset,
                          .bytes = bytes,
                          .epoch = epoch,
                          .stop = stop};
    return ST_OK;
}

void boundary_close(boundary_end *b)
{
    shm_unmap(b->map, b->bytes);
    *b = (boundary_end){0};
}

/* The futex lies on the count, the low half of a word on a little-endian machine. */
static uint32_t *count_of(_Atomic uint64_t *word)
{
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the count is the low half");
    return (uint32_t *)word;
}

static void wake(_Atomic uint64_t *word)
{
    syscall(SYS_futex, count_of(word), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Wait until *word is `want`. A word of another epoch counts as count 0 of ours: banks start zeroed
 * and are used again only after the old peer is gone. */
static status wait_word(const boundary_end *b, _Atomic uint64_t *word, uint32_t want,
                        uint64_t timeout_ns)
{
    uint64_t deadline = 0;
    for (uint32_t spin = 0;; spin++) {
        uint64_t now = atomic_load_explicit(word, memory_order_acquire);
        uint32_t count = (uint32_t)(now >> 32) == b->epoch ? (uint32_t)now : 0;
        if (count == want) return ST_OK;
        if (atomic_load_explicit(b->stop, memory_order_acquire) != 0) return ST_CLOSED;
        if (spin < SPINS_BEFORE_SLEEP) {
            __builtin_ia32_pause();
            continue;
        }
        uint64_t t = now_ns();
        if (deadline == 0) deadline = t + timeout_ns;
        if (t >= deadline) return ST_TIMEOUT;
        uint64_t left = deadline - t;
        struct timespec ts = {.tv_sec = (time_t)(left / NS_PER_S),
                              .tv_nsec = (long)(left % NS_PER_S)};
        /* A stop that is set between the check above and the sleep: boundary_wake comes after the
         * flag, and may come before we sleep; the timeout bounds that wait. */
        syscall(SYS_futex, count_of(word), FUTEX_WAIT, (uint32_t)now, &ts, NULL, 0);
    }
}

static void announce(const boundary_end *b, _Atomic uint64_t *word, uint32_t count)
{
    atomic_store_explicit(word, (uint64_t)b->epoch << 32 | count, memory_order_release);
    wake(word);
}

status boundary_tx_begin(boundary_end *b, uint32_t slot, uint64_t timeout_ns, slot_view *out)
{
    TRY(wait_word(b, &words_of(b, slot)->free, b->count[slot], timeout_ns));
    view_of(b, slot, out);
    return ST_OK;
}

void boundary_tx_end(boundary_end *b, uint32_t slot)
{
    announce(b, &words_of(b, slot)->full, ++b->count[slot]);
}

status boundary_rx_begin(boundary_end *b, uint32_t slot, uint64_t timeout_ns, slot_view *out)
{
    TRY(wait_word(b, &words_of(b, slot)->full, b->count[slot] + 1, timeout_ns));
    view_of(b, slot, out);
    return ST_OK;
}

void boundary_rx_end(boundary_end *b, uint32_t slot)
{
    announce(b, &words_of(b, slot)->free, ++b->count[slot]);
}

void boundary_tx_sent(boundary_end *b, uint32_t slot)
{
    uint64_t now = (uint64_t)b->epoch << 32 | b->count[slot];
    atomic_store_explicit(&words_of(b, slot)->sent, now, memory_order_release);
}

bool boundary_rx_sent(const boundary_end *b, uint32_t slot)
{
    uint64_t want = (uint64_t)b->epoch << 32 | (b->count[slot] + 1);
    return atomic_load_explicit(&words_of(b, slot)->sent, memory_order_acquire) == want;
}

boundary_lanes *boundary_lanes_of(const boundary_end *b)
{
    return (boundary_lanes *)((char *)b->map + lanes_offset()) + b->epoch % BOUNDARY_BANKS;
}

void boundary_lanes_clear(const boundary_end *b)
{
    boundary_lanes *l = boundary_lanes_of(b);
    for (uint32_t slot = 0; slot < BOUNDARY_SLOTS; slot++)
        for (uint32_t i = 0; i < BOUNDARY_LANE_ROWS; i++)
            for (uint32_t half = 0; half < 2; half++)
                atomic_store_explicit(&l->slot[slot].line[i][half], 0, memory_order_relaxed);
}

bool slot_valid(const boundary_end *b, const slot_view *v, slot_kind kind, uint64_t seq)
{
    return v->header->epoch == b->epoch && v->header->kind == (uint32_t)kind &&
           v->header->seq == seq && v->header->n_rows <= b->rows_max;
}

/* --- the talk before traffic --- */

static talk_side *side_of(const boundary_end *b, bool rx)
{
    boundary_talk *t = (boundary_talk *)((char *)b->map + talk_offset());
    t += b->epoch % BOUNDARY_BANKS;
    return rx ? &t->rx : &t->tx;
}

void boundary_say(boundary_end *b, bool rx, const talk_message *m)
{
    talk_side *s = side_of(b, rx);
    s->message = *m;
    announce(b, &s->said, ++b->n_said);
}

static bool message_valid(const talk_message *m)
{
    return m->kind >= TALK_OFFER && m->kind <= TALK_DONE && m->blob_bytes <= TALK_BLOB_BYTES &&
           memchr(m->why, '\0', sizeof m->why) != NULL;
}

status boundary_hear(boundary_end *b, bool rx, uint64_t timeout_ns, talk_message *out)
{
    talk_side *s = side_of(b, !rx);
    TRY(wait_word(b, &s->said, b->n_heard + 1, timeout_ns));
    b->n_heard++;
    *out = s->message; /* our own copy: what is checked is what is used */
    if (message_valid(out)) return ST_OK;
    *out = (talk_message){0};
    return ST_PROTOCOL;
}

bool boundary_spoken(const boundary_end *b, bool rx)
{
    uint64_t now = atomic_load_explicit(&side_of(b, !rx)->said, memory_order_acquire);
    return (uint32_t)(now >> 32) == b->epoch && (uint32_t)now == b->n_heard + 1;
}

void boundary_rx_resume(boundary_end *b, const uint32_t filled[BOUNDARY_SLOTS])
{
    for (uint32_t slot = 0; slot < BOUNDARY_SLOTS; slot++) {
        b->count[slot] = filled[slot];
        announce(b, &words_of(b, slot)->free, filled[slot]);
    }
}

void boundary_renew(boundary_end *b, uint32_t epoch)
{
    b->epoch = epoch;
    memset(b->count, 0, sizeof b->count);
    b->n_said = b->n_heard = 0;
}

void boundary_wake(boundary_end *b)
{
    if (b->map != NULL) {
        wake(&side_of(b, true)->said);
        wake(&side_of(b, false)->said);
    }
    for (uint32_t slot = 0; b->map != NULL && slot < BOUNDARY_SLOTS; slot++) {
        wake(&words_of(b, slot)->full);
        wake(&words_of(b, slot)->free);
    }
}
