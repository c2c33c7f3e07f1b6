/* tokenizer_merges.c - a table of rules by the two ids, and the merging of a list of symbols.
 *
 * A heap holds the neighbours that a rule joins, the lowest rank first, the leftmost among equals.
 * The best pair becomes one symbol and its new neighbours are added. A symbol that changed since a
 * pair was added has another id (the text is longer), so that comparing both ids is enough to know
 * that the pair still stands. */
#include "coordinator/text/tokenizer_merges.h"

#include "common/sampler.h"

#include <stdlib.h>
#include <string.h>

/* The slot of the rule for left and right, or the free one where it would be. */
static merge_rule *find_rule(const merge_table *m, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15ull;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93ull;
    for (uint64_t i = h >> 32 & m->mask;; i = (i + 1) & m->mask) {
        merge_rule *r = &m->slot[i];
        if (r->left == TOKEN_NONE || (r->left == left && r->right == right)) return r;
    }
}

/* room: bytes_max of the vocabulary, for the text of the result. */
static void add_rule(merge_table *m, const vocab *v, gguf_str text, uint32_t rank, char *room)
{
    const char *space = text.bytes < 2 ? NULL : memchr(text.text + 1, ' ', text.bytes - 1);
    if (space == NULL || text.bytes - 1 > v->bytes_max) return;
    uint32_t left_bytes = (uint32_t)(space - text.text);
    uint32_t right_bytes = text.bytes - left_bytes - 1;
    memcpy(room, text.text, left_bytes);
    memcpy(room + left_bytes, space + 1, right_bytes);
    uint32_t left = vocab_find_plain(v, room, left_bytes);
    uint32_t right = vocab_find_plain(v, room + left_bytes, right_bytes);
    uint32_t id = vocab_find_plain(v, room, left_bytes + right_bytes);
    if (left == TOKEN_NONE || right == TOKEN_NONE || id == TOKEN_NONE) return;
    merge_rule *r = find_rule(m, left, right);
    if (r->left == TOKEN_NONE) *r = (merge_rule){left, right, id, rank};
}

status merge_table_open(merge_table *m, const vocab *v, const gguf *g, errmsg *e)
{
    static const char key[] = "tokenizer.ggml.merges";
    *m = (merge_table){0};
    if (!gguf_has(g, key))
        return errmsg_set(e, ST_BAD_MODEL,
                          "the model file has no merges (%s), without which its tokenizer cannot "
                          "work; convert the model again",
                          key);
    gguf_str *rules;
    uint64_t n, n_slots = 16;
    TRY(gguf_array_str(g, key, 0, &rules, &n, e));
    while (n_slots < 2 * n)
        n_slots *= 2;
    char *room = malloc(v->bytes_max + 1ull);
    m->slot = malloc(n_slots * sizeof *m->slot);
    m->mask = n_slots - 1;
    status s = ST_OK;
    if (room == NULL || m->slot == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for %llu merges", (unsigned long long)n);
        goto done;
    }
    for (uint64_t i = 0; i < n_slots; i++)
        m->slot[i].left = TOKEN_NONE;
    for (uint64_t i = 0; i < n; i++)
        add_rule(m, v, rules[i], (uint32_t)i, room);
done:
    free(room);
    free(rules);
    return s;
}

void merge_table_close(merge_table *m)
{
    free(m->slot);
    *m = (merge_table){0};
}

void merge_work_free(merge_work *w)
{
    free(w->symbol);
    free(w->heap);
    *w = (merge_work){0};
}

status merge_work_begin(merge_work *w, uint64_t n, errmsg *e)
{
    w->n = w->n_heap = 0;
    if (n <= w->room) return ST_OK;
    uint64_t room = n < 64 ? 64 : n;
    free(w->symbol);
    w->room = 0;
    w->symbol = malloc(room * sizeof *w->symbol);
    if (w->symbol == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory to tokenize a word of %llu characters",
                          (unsigned long long)n);
    w->room = room;
    return ST_OK;
}

void merge_work_add(merge_work *w, uint32_t id, uint32_t from)
{
    CHECK(w->n < w->room);
    uint32_t i = (uint32_t)w->n++;
    w->symbol[i] = (merge_symbol){id, i == 0 ? MERGE_END : i - 1, MERGE_END, from};
    if (i > 0) w->symbol[i - 1].next = i;
}

static bool better(const merge_pair *a, const merge_pair *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->left < b->left);
}

static status heap_push(merge_work *w, merge_pair p, errmsg *e)
{
    if (w->n_heap == w->heap_room) {
        uint64_t room = w->heap_room == 0 ? 64 : w->heap_room * 2;
        merge_pair *grown = realloc(w->heap, room * sizeof *grown);
        if (grown == NULL) return errmsg_set(e, ST_RESOURCES, "no memory to tokenize a text");
        w->heap = grown;
        w->heap_room = room;
    }
    uint64_t i = w->n_heap++;
    while (i > 0 && better(&p, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = p;
    return ST_OK;
}

static merge_pair heap_pop(merge_work *w)
{
    merge_pair top = w->heap[0], last = w->heap[--w->n_heap];
    uint64_t i = 0;
    for (uint64_t child = 1; child < w->n_heap; child = 2 * i + 1) {
        if (child + 1 < w->n_heap && better(&w->heap[child + 1], &w->heap[child])) child++;
        if (!better(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Add the symbol left and the one after it, if a rule joins them. */
static status add_pair(merge_work *w, const merge_table *m, uint32_t left, errmsg *e)
{
    if (left == MERGE_END || w->symbol[left].next == MERGE_END) return ST_OK;
    uint32_t left_id = w->symbol[left].id, right_id = w->symbol[w->symbol[left].next].id;
    if (left_id == TOKEN_NONE || right_id == TOKEN_NONE) return ST_OK;
    const merge_rule *r = find_rule(m, left_id, right_id);
    if (r->left == TOKEN_NONE) return ST_OK;
    return heap_push(w, (merge_pair){r->rank, left, left_id, right_id}, e);
}

status merge_work_run(merge_work *w, const merge_table *m, errmsg *e)
{
    for (uint64_t i = 0; i + 1 < w->n; i++)
        TRY(add_pair(w, m, (uint32_t)i, e));
    while (w->n_heap > 0) {
        merge_pair p = heap_pop(w);
        merge_symbol *left = &w->symbol[p.left];
        if (left->id != p.left_id || left->next == MERGE_END) continue;
        merge_symbol *right = &w->symbol[left->next];
        if (right->id != p.right_id) continue;
        left->id = find_rule(m, p.left_id, p.right_id)->id;
        right->id = MERGE_GONE;
        left->next = right->next;
        if (left->next != MERGE_END) w->symbol[left->next].prev = p.left;
        TRY(add_pair(w, m, left->prev, e));
        TRY(add_pair(w, m, p.left, e));
    }
    return ST_OK;
}
