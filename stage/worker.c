/* Owns everything a stage computes with: model file, stage object, boundaries, readback. A step:
 * operations on KV, rows in (or embeddings), the layers, rows out (or head and readback). */
#include "stage/ring.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_MS 50

status worker_say(worker *w, wire_kind kind, uint64_t seq, const void *body, uint32_t body_bytes,
                  errmsg *e)
{
    _Alignas(16) unsigned char frame[sizeof(wire_header) + sizeof(wire_fault) + 64];
    CHECK(sizeof(wire_header) + body_bytes <= sizeof frame);
    wire_header h = {.magic = WIRE_MAGIC,
                     .version = WIRE_VERSION,
                     .kind = (uint16_t)kind,
                     .stage = w->stage_i,
                     .epoch = w->epoch,
                     .body_bytes = body_bytes,
                     .seq = seq};
    memcpy(frame, &h, sizeof h);
    if (body_bytes > 0) memcpy(frame + sizeof h, body, body_bytes);
    return mailbox_push(&w->outbox, frame, sizeof h + body_bytes, e);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Count an overlap when another stage is inside its own layers as we enter ours: what is active at
 * the same time, not the order of enqueueing. */
void worker_enter_layers(worker *w)
{
    atomic_store_explicit(&w->words->inside, 1, memory_order_seq_cst);
    for (uint32_t i = 0; i < w->config.n_stages; i++) {
        if (i != w->stage_i &&
            atomic_load_explicit(&w->block->stage[i].inside, memory_order_seq_cst) != 0) {
            atomic_fetch_add_explicit(&w->words->n_overlaps, 1, memory_order_relaxed);
            break;
        }
    }
}

void worker_leave_layers(worker *w)
{
    atomic_store_explicit(&w->words->inside, 0, memory_order_release);
}

static void add(_Atomic uint64_t *word, uint64_t n)
{
    atomic_fetch_add_explicit(word, n, memory_order_relaxed);
}

/* Rows that walk the layers here, whosever these are. */
static bool walks(const worker *w, const piece *x)
{
    return !x->unsplit || is_first(w);
}

static uint32_t first_live(const piece *x)
{
    uint32_t i = 0;
    while ((x->rows[i].flags & ROW_LIVE) == 0) i++;
    return i;
}

status worker_walk(worker *w, const piece *x, errmsg *e)
{
    uint32_t left;
    if (x->n_rows == 0) return ST_OK;
    TRY(worker_inject(w, x->prime ? FAULT_AT_PRIME : FAULT_AT_DECODE, x->seq, &left, e));
    if (x->n_live == 0) return ST_OK;
    bool corrupt = has_fault(left, FAULT_CORRUPT), nan = has_fault(left, FAULT_NAN),
         here = walks(w, x);
    bool inside =
        here && (!x->ahead || backend_of(w)->in_call); /* otherwise later, on the device */
    if (inside) worker_enter_layers(w);
    status s = ST_OK;
    if (is_first(w)) s = stage_embed(w->body, e);
    if (s == ST_OK && nan) s = worker_put_nan(w, first_live(x));
    if (s == ST_OK && here) {
        s = x->unsplit ? stage_walk_all(w->body, x->poison, e)
                       : seam_walk(&w->seam, x->n_rows, !corrupt, x->ahead ? NULL : x->poison, e);
    }
    if (s == ST_OK && corrupt) s = worker_flip_bit(w);
    if (inside) worker_leave_layers(w);
    return s;
}

static bool of_several(const step_view *v)
{
    for (uint32_t i = 1; i < v->step->n_rows; i++)
        if (v->rows[i].branch != v->rows[0].branch) return true;
    return false;
}

/* Counted before it is handed on: who sees a result sees it counted, by every stage. */
static void count_step(const worker *w, stage_words *n, const piece *x)
{
    const step_view *v = &w->rounds.v;
    bool cut = w->config.n_stages > 1 || w->seam.n > 1;
    bool prime = (v->step->flags & STEP_PRIME) != 0, split = cut && !x->unsplit;
    add(&n->n_steps, 1);
    if (!walks(w, x)) return;
    if (x->unsplit) add(&n->n_unsplit, 1);
    if (prime) add(&n->n_chunks, 1);
    if ((v->step->flags & STEP_VERIFY) != 0) {
        add(&n->n_verifies, 1);
        if (split) add(&n->n_verifies_split, 1);
    }
    if (!of_several(v)) return;
    add(prime ? &n->n_prime_batches : &n->n_batches, 1);
    if (split) add(prime ? &n->n_prime_batches_split : &n->n_batches_split, 1);
}

void worker_count_piece(worker *w, const piece *x, uint64_t busy_ns)
{
    for (uint32_t i = w->seam.n; i-- > 0;) {
        stage_words *n = w->seam.words[i];
        uint64_t own_ns = i > 0 && w->seam.walked_ns[i] < busy_ns ? w->seam.walked_ns[i] : 0;
        if (i == 0) own_ns = busy_ns; /* what the others did not take */
        busy_ns -= own_ns;
        if (x->round == 0 && x->g == 0) count_step(w, n, x);
        add(&n->busy_ns, own_ns);
        if (!walks(w, x)) continue;
        add(&n->n_rows, x->n_live);
        if (x->round > 0) add(&n->n_free_rounds, 1);
    }
}

/* Its rows' tokens come from the piece of the round before, not from the message. */
static bool is_fed(const piece *x)
{
    return x->round > 0 || x->goes_on;
}

trace_event worker_shown(const worker *w, const piece *x, uint32_t n_rows)
{
    return (trace_event){.seq = x->seq,
                         .n_rows = n_rows,
                         .round = x->round,
                         .group = x->g,
                         .slot = rounds_slot(w->rounds.v.step, x->round, x->g),
                         .of = w->config.edge_epoch};
}

uint32_t worker_slot(const worker *w, const piece *x)
{
    return rounds_slot(w->rounds.v.step, x->round, x->g);
}

/* The first stage's come from the last one, which walked them in the round before. */
static bool from_step_before(const worker *w, const piece *x)
{
    return is_first(w) && x->round == 0;
}

incoming worker_incoming(const worker *w, const piece *x)
{
    bool fed = is_first(w), before = from_step_before(w, x);
    uint32_t round = before ? ROUND_BEFORE : fed ? x->round - 1 : x->round;
    incoming in = {.slot = rounds_slot(w->rounds.v.step, round, x->g),
                   .seq = before ? x->seq - 1 : x->seq,
                   .rows = x->rows,
                   .n_rows = x->n_rows,
                   .drawn = is_fed(x),
                   .n_vocab = w->model->n_vocab,
                   .poison = x->poison};
    if (!fed) in.hidden = stage_hidden(w->body);
    return in;
}

trace_event worker_shown_in(const worker *w, const piece *x, const incoming *in)
{
    trace_event of = worker_shown(w, x, x->n_rows);
    of.seq = in->seq;
    of.slot = in->slot;
    if (!is_first(w)) return of;
    of.round = from_step_before(w, x) ? w->n_rounds_before - 1 : x->round - 1; /* the sender's */
    return of;
}

/* What the rows are and hold, from the stage before: the last one, where they are fed to the
 * first. */
static status receive(worker *w, const piece *x, errmsg *e)
{
    const incoming in = worker_incoming(w, x);
    span waiting = span_begin(TRACE_STARVED);
    status s = edges_receive(&w->edges, &in, e);
    span_end(s == ST_OK ? w->trace : NULL, &waiting, worker_shown_in(w, x, &in));
    return s;
}

static status send_on(worker *w, const piece *x, errmsg *e)
{
    dev_ptr hidden = {0};
    if (!is_last(w)) hidden = stage_hidden(w->body);
    span waiting = span_begin(TRACE_BLOCKED);
    status s =
        edges_send(&w->edges, worker_slot(w, x), x->seq, x->rows, x->poison, x->n_rows, hidden, e);
    span_end(s == ST_OK ? w->trace : NULL, &waiting, worker_shown(w, x, x->n_rows));
    return s;
}

status worker_say_poisoned(worker *w, const piece *x, errmsg *e)
{
    for (uint32_t i = 0, said = WIRE_NONE; i < x->n_rows; i++) {
        const wire_row *r = &x->rows[i];
        if (x->poison[i] == 0 || (r->flags & ROW_LIVE) == 0 || r->branch == said) continue;
        wire_poisoned p = {.session = r->session,
                           .generation = r->generation,
                           .branch = r->branch,
                           .position = r->position,
                           .stage = poison_stage(x->poison[i]),
                           .in_logits = poison_in_logits(x->poison[i])};
        TRY(worker_say(w, WIRE_POISONED, x->seq, &p, sizeof p, e));
        said = r->branch;
    }
    return ST_OK;
}

status worker_keep_on(worker *w, const piece *x, errmsg *e)
{
    if (w->sent.to.map == NULL) return ST_OK;
    span keeping = span_begin(TRACE_JOURNAL);
    status s = keep_rows(&w->sent, x->seq, x->rows, x->n_rows, e);
    span_end(s == ST_OK ? w->trace : NULL, &keeping, worker_shown(w, x, x->n_rows));
    return s;
}

status worker_keep(worker *w, errmsg *e)
{
    if (!keep_flies(&w->sent)) return ST_OK;
    span keeping = span_begin(TRACE_JOURNAL);
    const trace_event of = {.seq = w->sent.seq};
    status s = keep_land(&w->sent, e);
    span_end(s == ST_OK ? w->trace : NULL, &keeping, of);
    return s;
}

/* Last stage: the rows of step seq, as its last round left them, to the first stage, which walks
 * them on in the step `next`: groups up to `end`, but for those that went before. */
static status hand_on(worker *w, uint64_t seq, const wire_step *next, uint32_t end, errmsg *e)
{
    for (; w->n_handed < end; w->n_handed++) {
        uint32_t n_rows, g = w->n_handed, slot = rounds_slot(next, ROUND_BEFORE, g);
        const wire_row *rows = rounds_group(&w->rounds, g, &n_rows);
        trace_event of = {.seq = seq,
                          .n_rows = n_rows,
                          .round = w->n_rounds - 1,
                          .group = g,
                          .slot = slot,
                          .of = w->config.edge_epoch};
        span waiting = span_begin(TRACE_BLOCKED);
        status s = w->ahead ? ring_hand_on(w, slot, seq, rows, n_rows, e)
                            : edges_send(&w->edges, slot, seq, rows, rounds_poison(&w->rounds, g),
                                         n_rows, (dev_ptr){0}, e);
        span_end(s == ST_OK ? w->trace : NULL, &waiting, of);
        TRY(s);
    }
    return ST_OK;
}

/* The step that goes on after step seq, where that is the next message and is here already. */
static const wire_step *next_goes_on(worker *w, uint64_t seq)
{
    const mail *m = mailbox_peek(&w->inbox);
    if (m == NULL || wire_head(m->frame)->kind != WIRE_STEP || wire_head(m->frame)->seq != seq + 1)
        return NULL;
    const wire_step *next = wire_body(m->frame);
    return (next->flags & STEP_GOES_ON) != 0 && next->n_groups == w->rounds.n_groups ? next : NULL;
}

status worker_end_piece(worker *w, const piece *x, const wire_result *r, errmsg *e)
{
    TRY(worker_say_poisoned(w, x, e));
    rounds_settle(&w->rounds, x->round, x->g);
    TRY(worker_say(w, WIRE_RESULT, x->seq, r, sizeof *r, e));
    rounds_advance(&w->rounds, x->g);
    if (w->config.n_stages == 1) return ST_OK;
    if (x->round + 1 < w->rounds.v.step->rounds) return x->ahead ? ST_OK : send_on(w, x, e);
    const wire_step *next = next_goes_on(w, x->seq);
    return next != NULL ? hand_on(w, x->seq, next, x->g + 1, e) : ST_OK;
}

static status head(worker *w, const piece *x, wire_result *r, errmsg *e)
{
    TRY(worker_land(w, e));
    const bool lands_later = worker_lands_later(w, x);
    const stage_head_args a = {.samplers = w->rounds.v.samplers,
                               .out = &w->results,
                               .seq = x->seq,
                               .drawn = lands_later ? NULL : rounds_drawn(&w->rounds, x->g),
                               .poison = lands_later ? worker_leave(w, x) : x->poison};
    span drawing = span_begin(TRACE_HEAD);
    status s = stage_head_begin(seam_last(&w->seam), &a, e);
    if (s == ST_OK && lands_later)
        w->landing.seq = x->seq;
    else if (s == ST_OK)
        s = stage_head_end(seam_last(&w->seam), &r->n_rows, e);
    span_end(s == ST_OK ? w->trace : NULL, &drawing, worker_shown(w, x, r->n_rows));
    return s;
}

/* Between the boundaries: the layers and the head. busy_ns: what the piece has taken before. */
static status pass(worker *w, piece *x, wire_result *r, uint64_t busy_ns, errmsg *e)
{
    const wire_step *step = w->rounds.v.step;
    bool verify = (step->flags & STEP_VERIFY) != 0;
    span passing = span_begin(x->prime ? TRACE_PROMPT : verify ? TRACE_VERIFY : TRACE_DECODE);
    status s = ST_OK;
    if (is_fed(x)) TRY_DONE(s, seam_rows(&w->seam, x->rows, x->n_rows, step->n_samplers, e));
    x->n_live = rounds_live(&w->rounds, x->g);
    TRY_DONE(s, worker_walk(w, x, e));
    if (is_last(w)) TRY_DONE(s, head(w, x, r, e));
    worker_count_piece(w, x, busy_ns + now_ns() - passing.begin_ns);
done:
    span_end(s == ST_OK ? w->trace : NULL, &passing, worker_shown(w, x, x->n_live));
    return s;
}

static status run_piece(worker *w, piece *x, errmsg *e)
{
    const wire_step *step = w->rounds.v.step;
    bool linked = w->config.n_stages > 1, fed = is_fed(x);
    uint64_t begin = now_ns();
    x->rows = rounds_group(&w->rounds, x->g, &x->n_rows);
    x->poison = rounds_poison(&w->rounds, x->g);
    /* What the message says is put on the device while the rows are on their way. */
    if (!fed) TRY(seam_rows(&w->seam, x->rows, x->n_rows, step->n_samplers, e));
    uint64_t busy_ns = now_ns() - begin;
    if (linked) TRY(worker_land(w, e)); /* before waiting for others */
    if (linked && (fed || !is_first(w))) {
        if (keep_is_soon(&w->sent)) TRY(worker_keep(w, e));
        TRY(receive(w, x, e));
    }
    wire_result r = {.round = x->round, .group = x->g};
    TRY(pass(w, x, &r, busy_ns, e));
    if (w->landing.seq != 0) return ST_OK;
    if (is_last(w)) return worker_end_piece(w, x, &r, e);
    TRY(keep_begin(&w->sent, x->rows, x->n_rows, e));
    TRY(send_on(w, x, e));
    /* Rows that have walked all layers are nothing to replay a stage with: their places stay
     * void. */
    if (!x->unsplit) TRY(worker_keep_on(w, x, e));
    rounds_advance(&w->rounds, x->g);
    return ST_OK;
}

void worker_done(worker *w, uint64_t seq)
{
    atomic_store_explicit(&w->words->step_done, seq, memory_order_release);
    atomic_fetch_add_explicit(&w->words->progress, 1, memory_order_release);
}

static status step(worker *w, const void *frame, errmsg *e)
{
    step_view v = wire_step_view(frame);
    piece x = {.seq = wire_head(frame)->seq,
               .prime = (v.step->flags & STEP_PRIME) != 0,
               .goes_on = (v.step->flags & STEP_GOES_ON) != 0,
               .ahead = (v.step->flags & STEP_AHEAD) != 0,
               .unsplit = (v.step->flags & STEP_UNSPLIT) != 0};
    atomic_store_explicit(&w->words->step_entered, x.seq, memory_order_release);
    if (x.seq > w->applied_seq) {
        TRY(seam_kv_ops(&w->seam, v.kv_ops, v.step->n_kv_ops, e));
        TRY(keep_copies(&w->sent, x.seq, v.kv_ops, v.step->n_kv_ops, e));
        w->applied_seq = x.seq;
    }
    bool known = x.seq == w->walked_seq + 1 && w->n_rounds > 1 && w->config.n_stages > 1;
    if (x.goes_on && !known) {
        return errmsg_set(e, ST_PROTOCOL, "step %llu goes on after step %llu, the last was %llu",
                          (unsigned long long)x.seq, (unsigned long long)x.seq - 1,
                          (unsigned long long)w->walked_seq);
    }
    if (x.ahead && !edges_carry(&w->edges)) {
        return errmsg_set(e, ST_PROTOCOL,
                          "step %llu is for boundaries that devices signal by themselves",
                          (unsigned long long)x.seq);
    }
    bool overlap = (v.step->flags & STEP_OVERLAP) != 0;
    if (x.ahead && v.step->n_groups > wire_ahead_groups(w->config.n_stages, overlap)) {
        return errmsg_set(e, ST_PROTOCOL,
                          "step %llu has %u groups, more than devices can tell each other of",
                          (unsigned long long)x.seq, v.step->n_groups);
    }
    if (x.goes_on && x.ahead != w->ahead) {
        return errmsg_set(e, ST_PROTOCOL, "step %llu goes on in another way than the step before",
                          (unsigned long long)x.seq);
    }
    if (x.goes_on && is_last(w)) TRY(hand_on(w, x.seq - 1, v.step, w->rounds.n_groups, e));
    w->walked_seq = 0;
    /* It is over when its operations are: another stage may read there next. */
    if (v.step->n_rows == 0 && v.step->n_kv_ops > 0) TRY(stage_settle(w->body, e));
    TRY(rounds_begin(&w->rounds, &v, e));
    w->n_handed = 0;
    w->n_rounds_before = w->n_rounds;
    w->n_rounds = v.step->rounds;
    w->ahead = x.ahead;
    if (worker_runs_ahead(w, &v)) return worker_step_ahead(w, &x, e);
    for (x.round = 0; x.round < v.step->rounds; x.round++)
        for (x.g = 0; x.g < v.step->n_groups; x.g++)
            TRY(x.ahead ? ring_round(w, &x, e) : run_piece(w, &x, e));
    w->walked_seq = x.seq;
    if (w->landing.seq == 0) worker_done(w, x.seq);
    return ST_OK;
}

/* --- the thread ------------------------------------------------------------------------------- */

static status handle(worker *w, const mail *m, errmsg *e)
{
    const wire_header *h = wire_head(m->frame);
    switch (h->kind) {
    case WIRE_CONFIG:
        if (w->configured) break;
        return worker_load(w, wire_body(m->frame), e);
    case WIRE_PROBE:
        if (w->body == NULL) break;
        return worker_interrupted(w) ? ST_CLOSED : worker_probe(w, e);
    case WIRE_STEP:
        if (w->body == NULL) break;
        return worker_interrupted(w) ? ST_CLOSED : step(w, m->frame, e);
    case WIRE_QUIESCE:
        if (w->body == NULL) break;
        return worker_quiesce(w, e);
    case WIRE_REATTACH:
        if (w->body == NULL) break;
        return worker_reattach(w, wire_body(m->frame));
    case WIRE_REPLAY:
        if (w->body == NULL) break;
        return worker_interrupted(w) ? ST_CLOSED : worker_replay(w, m->frame, e);
    default:
        break;
    }
    return errmsg_set(e, ST_PROTOCOL, "unexpected message %s", wire_kind_word(h->kind));
}

/* Not what comes before the end: nobody would tell of a fault there. */
static status idle(worker *w, errmsg *e)
{
    uint32_t left;
    if (atomic_load(&w->words->state) != STAGE_READY || atomic_load(&w->words->ending) != 0)
        return ST_OK;
    return worker_inject(w, FAULT_AT_IDLE, FAULT_STEP_ANY, &left, e);
}

static void report(worker *w, const errmsg *e)
{
    errmsg ignored = {0};
    wire_fault f = {.code = e->code, .seq = atomic_load(&w->words->step_entered)};
    snprintf(f.text, sizeof f.text, "%s", e->text);
    set_state(w, STAGE_FAILED);
    w->faulted = true;
    if (worker_say(w, WIRE_FAULT, 0, &f, sizeof f, &ignored) != ST_OK) log_error("%s", e->text);
}

static void release(worker *w)
{
    pthread_mutex_lock(&w->edges_lock);
    w->edges_open = false;
    edges_close(&w->edges);
    pthread_mutex_unlock(&w->edges_lock);
    if (w->results.map != NULL) readback_unmap(&w->results);
    keeper_close(&w->sent);
    journal_unmap(&w->received);
    rounds_close(&w->rounds);
    w->trace = NULL;
    trace_block_unmap(w->traces);
    seam_close(&w->seam);
    loan_unmap(&w->loan);
    free(w->model);
    if (w->file != NULL) gguf_close(w->file);
}

/* Something that the device has been asked for is to be told, or kept, when it is there. */
static bool awaits(const worker *w)
{
    return w->landing.seq != 0 || keep_flies(&w->sent);
}

/* A message, or none. Before all but a step, which can be put behind them, results and rows that
 * are on their way are fetched. */
static status serve(worker *w, const mail *m, errmsg *e)
{
    if (w->faulted) return ST_OK;
    bool landed = awaits(w) && (m == NULL || wire_head(m->frame)->kind != WIRE_STEP);
    if (landed) {
        TRY(worker_keep(w, e));
        status s = worker_land(w, e);
        if (s != ST_OK && s != ST_CLOSED) return s;
    }
    if (m != NULL) return handle(w, m, e);
    return landed ? ST_OK : idle(w, e);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    pthread_setname_np(pthread_self(), "worker");
    while (atomic_load_explicit(&w->stop, memory_order_acquire) == 0) {
        bool lands = awaits(w) && !w->faulted;
        mail *m = mailbox_pop(&w->inbox, lands ? 0 : IDLE_MS);
        errmsg e = {0};
        status s = serve(w, m, &e);
        free(m);
        if (s != ST_OK && s != ST_CLOSED) {
            errmsg_set(&e, s, "stage %u: %s", w->stage_i, status_word(s));
            report(w, &e);
        }
    }
    if (!w->faulted) set_state(w, STAGE_STOPPING);
    release(w);
    return NULL;
}

status worker_open(worker **out, uint32_t stage_i, uint32_t epoch, run_block *block, errmsg *e)
{
    *out = NULL;
    worker *w = calloc(1, sizeof *w);
    if (w == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the worker");
    w->stage_i = stage_i;
    w->epoch = epoch;
    w->block = block;
    w->words = &block->stage[stage_i];
    w->inbox.fd = w->outbox.fd = -1;
    pthread_mutex_init(&w->edges_lock, NULL);
    status s = ST_OK;
    TRY_DONE(s, mailbox_open(&w->inbox, e));
    TRY_DONE(s, mailbox_open(&w->outbox, e));
    atomic_store(&w->words->epoch, epoch);
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    if (rc != 0)
        s = errmsg_set(e, ST_RESOURCES, "cannot start the worker thread: %s", strerror(rc));
done:
    if (s != ST_OK) {
        mailbox_close(&w->inbox);
        mailbox_close(&w->outbox);
        free(w);
        return s;
    }
    *out = w;
    return ST_OK;
}

status worker_post(worker *w, const void *frame, uint64_t bytes, errmsg *e)
{
    return mailbox_push(&w->inbox, frame, bytes, e);
}

mailbox *worker_outbox(worker *w)
{
    return &w->outbox;
}

void worker_interrupt(worker *w)
{
    atomic_fetch_add_explicit(&w->interrupts, 1, memory_order_acq_rel);
    pthread_mutex_lock(&w->edges_lock);
    if (w->edges_open) edges_wake(&w->edges);
    pthread_mutex_unlock(&w->edges_lock);
}

void worker_stop(worker *w)
{
    atomic_store_explicit(&w->stop, 1, memory_order_release);
    worker_interrupt(w);
}

bool worker_close(worker *w, uint32_t limit_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += (long)(limit_ms % 1000) * (long)NS_PER_MS;
    if (until.tv_nsec >= (long)NS_PER_S) {
        until.tv_nsec -= (long)NS_PER_S;
        until.tv_sec++;
    }
    worker_stop(w);
    if (pthread_timedjoin_np(w->thread, NULL, &until) != 0) return false;
    mailbox_close(&w->inbox);
    mailbox_close(&w->outbox);
    pthread_mutex_destroy(&w->edges_lock);
    free(w);
    return true;
}
