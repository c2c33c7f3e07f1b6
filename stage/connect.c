#include "stage/connect.h"

#include "common/log.h"
#include "stage/probe.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    edges *x;
    edge *g;
    bool rx;
    const transport *kind;   /* what is being tried */
    transport_end *way;
    talk_message heard;
} meeting;

static transport_options options_of(const meeting *m)
{
    return (transport_options){.end = &m->g->end,
                               .backend = m->x->backend,
                               .queue = m->x->queue,
                               .signal = m->x->signal};
}

static void progress(edges *x)
{
    atomic_fetch_add_explicit(&x->words->progress, 1, memory_order_release);
}

static status hear_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    meeting *m = ctx;
    status s = boundary_hear(&m->g->end, m->rx, timeout_ns, &m->heard);
    if (s != ST_PROTOCOL) return s;
    return errmsg_set(e, s, "boundary %u -> %u: stage %u said what no stage says", m->g->from,
                      m->g->to, m->rx ? m->g->from : m->g->to);
}

static status hear(meeting *m, errmsg *e)
{
    TRY(edges_wait(m->x, !m->rx, hear_slice, m, e));
    progress(m->x);
    return ST_OK;
}

static status settle_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    meeting *m = ctx;
    (void)timeout_ns;
    if (atomic_load_explicit(m->x->stop, memory_order_acquire) != 0) return ST_CLOSED;
    return m->kind->settle(m->way, &m->heard, e);
}

/* --- the receiver --- */

/* Whether the doors leave this transport to this boundary. */
static bool is_candidate(const meeting *m, const transport *kind)
{
    const edges *x = m->x;
    if (m->g->end.n_embd == 0) return kind->kind == TRANSPORT_SHM;
    if (x->transport != TRANSPORT_AUTO && kind->kind != x->transport) return false;
    return x->signal == SIGNAL_AUTO || kind->has_signals;
}

static bool is_forced(const meeting *m)
{
    return m->g->end.n_embd != 0 &&
           (m->x->transport != TRANSPORT_AUTO || m->x->signal != SIGNAL_AUTO);
}

/* Offer, hear the answer, settle. ST_OK; or *why says why it cannot be this one ("": no word of it),
 * with ST_RESOURCES. */
static status try_transport(meeting *m, const transport *kind, errmsg *why, errmsg *e)
{
    transport_options o = options_of(m);
    talk_message offer = {.kind = TALK_OFFER, .transport = kind->kind, .signal = o.signal};
    transport_end *before = m->way;
    const transport *kind_before = m->kind;
    m->way = NULL;
    m->kind = kind;
    status s = kind->applies(&o, true) ? kind->offer(&m->way, &o, &offer, why) : ST_CLOSED;
    if (s != ST_OK) {
        m->way = before; /* its sender has it mapped until it answers */
        m->kind = kind_before;
        return ST_RESOURCES;
    }
    boundary_say(&m->g->end, true, &offer);
    s = hear(m, e);
    if (before != NULL) kind_before->close(before);
    TRY(s);
    if (m->heard.kind == TALK_REFUSE) {
        if (m->heard.why[0] != '\0') errmsg_set(why, ST_RESOURCES, "%s", m->heard.why);
        return ST_RESOURCES;
    }
    boundary_rx_resume(&m->g->end, m->heard.filled);
    if (m->heard.kind != TALK_ACCEPT || m->heard.transport != kind->kind)
        return errmsg_set(e, ST_PROTOCOL, "boundary %u -> %u: stage %u answered what was not asked",
                          m->g->from, m->g->to, m->g->from);
    s = edges_wait(m->x, false, settle_slice, m, why);
    return s == ST_CLOSED ? s : s == ST_OK ? ST_OK : ST_RESOURCES;
}

/* The transport that was tried stays only if it is the one. */
static void publish(meeting *m)
{
    edge_set(m->x, m->g, m->kind, m->way);
    m->way = NULL;
}

static void take_back(meeting *m)
{
    pthread_mutex_lock(&m->x->lock);
    m->way = m->g->way;
    m->g->kind = NULL;
    m->g->way = NULL;
    pthread_mutex_unlock(&m->x->lock);
}

static status none_left(const meeting *m, const errmsg *why, errmsg *e)
{
    const edges *x = m->x;
    const transport *t = transport_get(x->transport);
    if (!is_forced(m)) return errmsg_set(e, why->code, "%s", why->text);
    bool by_signal = t == NULL;
    return errmsg_set(e, why->code == ST_PROTOCOL ? ST_PROTOCOL : ST_RESOURCES,
                      "boundary %u -> %u: MEMRA_PP_%s=%s cannot work here, auto would take what does: %.300s", m->g->from,
                      m->g->to, by_signal ? "SIGNAL" : "TRANSPORT",
                      by_signal ? signal_word(x->signal) : t->name,
                      why->code != ST_OK ? why->text : "it needs a CUDA device at both ends");
}

/* Nothing is left to offer: our end goes when the sender no longer has it mapped. */
static status part(meeting *m, errmsg *e)
{
    if (m->way == NULL) return ST_OK;
    boundary_say(&m->g->end, true, &(talk_message){.kind = TALK_REFUSE});
    return hear(m, e);
}

static status lead(meeting *m, dev_ptr hidden, errmsg *e)
{
    errmsg last = {0};
    for (uint32_t i = 0; i < TRANSPORTS; i++) {
        const transport *kind = transport_at(i);
        errmsg why = {0};
        if (!is_candidate(m, kind)) continue;
        status s = try_transport(m, kind, &why, e);
        if (s == ST_OK) {
            publish(m);
            s = probe_receive_all(m->x, hidden, &why);
            if (s == ST_OK) {
                boundary_say(&m->g->end, true, &(talk_message){.kind = TALK_DONE});
                return ST_OK;
            }
            take_back(m);
        }
        if (e->code != ST_OK) return e->code;
        if (s == ST_CLOSED) return s;
        if (s != ST_RESOURCES && s != ST_PROTOCOL)
            return errmsg_set(e, s, "boundary %u -> %u, %s: %s", m->g->from, m->g->to, kind->name,
                              why.code != ST_OK ? why.text : "the device failed");
        if (why.code == ST_OK) continue;
        last = why;
        if (!is_forced(m))
            log_warn("boundary %u -> %u: not over %s: %s", m->g->from, m->g->to, kind->name,
                     why.text);
    }
    TRY(part(m, e));
    return none_left(m, &last, e);
}

/* --- the sender --- */

static status answer_offer(meeting *m, errmsg *why)
{
    transport_options o = options_of(m);
    const uint32_t *filled = m->g->end.count;
    talk_message answer = {.kind = TALK_ACCEPT,
                           .transport = m->heard.transport,
                           .filled = {filled[0], filled[1]}};
    const transport *kind = transport_get((transport_kind)m->heard.transport);
    o.signal = (signal_kind)m->heard.signal;
    status s = kind == NULL || m->heard.signal > SIGNAL_SPIN ? ST_CLOSED
               : !kind->applies(&o, false)                   ? ST_CLOSED
                                           : kind->accept(&m->way, &o, &m->heard, &answer, why);
    m->kind = kind;
    if (s != ST_OK) {
        answer = (talk_message){.kind = TALK_REFUSE, .transport = m->heard.transport};
        if (s != ST_CLOSED) snprintf(answer.why, sizeof answer.why, "%s", why->text);
    }
    boundary_say(&m->g->end, false, &answer);
    return s;
}

static status follow(meeting *m, dev_ptr hidden, bool corrupt, errmsg *e)
{
    for (;;) {
        errmsg why = {0};
        TRY(hear(m, e));
        if (m->heard.kind == TALK_DONE && m->g->way != NULL) return ST_OK;
        edge_set(m->x, m->g, NULL, NULL); /* the receiver waits for this before it frees its end */
        if (m->heard.kind == TALK_REFUSE) {
            boundary_say(&m->g->end, false, &(talk_message){.kind = TALK_REFUSE});
            continue; /* the receiver reports it; we are told to end */
        }
        if (m->heard.kind != TALK_OFFER)
            return errmsg_set(e, ST_PROTOCOL, "boundary %u -> %u: stage %u ended before it began",
                              m->g->from, m->g->to, m->g->to);
        if (answer_offer(m, &why) != ST_OK) continue;
        status s = edges_wait(m->x, true, settle_slice, m, &why);
        publish(m);
        if (s == ST_CLOSED) return s;
        /* A link that did not come up, or a probe that could not be sent: the receiver sees nothing
         * come and goes on to the next. What ends the device ends the step after it. */
        if (s != ST_OK) continue;
        TRY(probe_send_all(m->x, hidden, corrupt, e));
    }
}

status edge_connect(edges *x, edge *g, dev_ptr hidden, bool corrupt, errmsg *e)
{
    meeting m = {.x = x, .g = g, .rx = g == &x->in};
    status s = m.rx ? lead(&m, hidden, e) : follow(&m, hidden, corrupt, e);
    if (m.way != NULL) m.kind->close(m.way);
    return s;
}

status edges_connect(edges *x, dev_ptr hidden, bool corrupt, errmsg *e)
{
    if (x->n_stages == 1) return ST_OK;
    bool in_first = x->in.from < x->out.from;
    TRY(edge_connect(x, in_first ? &x->in : &x->out, hidden, corrupt, e));
    return edge_connect(x, in_first ? &x->out : &x->in, hidden, corrupt, e);
}
