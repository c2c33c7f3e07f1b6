/* A stage program that lies. It speaks the coordinator's language as far as the behaviour in
 * MEMRA_FAKE wants, then does what that behaviour is about. Built beside the tests, with the
 * build's own identity; tests/unit/hostile_test.c runs it. */
#include "common/readback.h"
#include "common/runblock.h"
#include "common/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "build_id.h"

static void *sock;
static uint32_t stage_i, epoch;
static const char *what;

static bool is(const char *behaviour)
{
    return strcmp(what, behaviour) == 0;
}

static void say(wire_kind kind, uint64_t seq, const void *body, uint32_t body_bytes)
{
    static unsigned char frame[4096];
    wire_header h = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = (uint16_t)kind,
                     .stage = stage_i, .epoch = epoch, .body_bytes = body_bytes, .seq = seq};
    if (is("wrong-stage") && kind == WIRE_LOADED) h.stage = (stage_i + 1) % STAGES_MAX;
    if (is("old-epoch") && kind == WIRE_LOADED) h.epoch = 77;
    if (is("bad-version") && kind == WIRE_HELLO) h.version = 999;
    memcpy(frame, &h, sizeof h);
    if (body_bytes > 0) memcpy(frame + sizeof h, body, body_bytes);
    zmq_send(sock, frame, sizeof h + body_bytes, 0);
}

/* Beside what it should say: something that is no message, each time of another kind. */
static void say_nonsense(void)
{
    static uint32_t n;
    unsigned char frame[sizeof(wire_header) + 8] = {0};
    wire_header h = {.magic = WIRE_MAGIC,
                     .version = WIRE_VERSION,
                     .kind = WIRE_RESULT,
                     .stage = stage_i,
                     .epoch = epoch,
                     .body_bytes = 8};
    switch (n++ % 5) {
    case 0:
        h.magic++;
        break;
    case 1:
        h.version++;
        break;
    case 2:
        h.kind = 999;
        break;
    case 3:
        h.stage = STAGES_MAX;
        break;
    default:
        break; /* a RESULT is not of 8 bytes */
    }
    memcpy(frame, &h, sizeof h);
    zmq_send(sock, frame, sizeof frame, 0);
}

static void say_loaded(void)
{
    wire_loaded l = {.weights_bytes = UINT64_MAX, .device_name = "a \"fake\"\n\x01 device"};
    say(WIRE_LOADED, 0, &l, sizeof l);
}

/* Every step of the test has one row, which samples. */
static void on_step(const void *frame, readback *r)
{
    const wire_row *asked = wire_step_view(frame).rows;
    uint64_t seq = wire_head(frame)->seq;
    wire_result result = {.n_rows = 1};
    readback_token *row = readback_token_at(r, asked->branch, asked->position);
    row->token = is("token-out-of-range") ? 0x7fffffff : 1;
    row->status = is("row-status") ? 12345 : ST_OK;
    atomic_store(&row->commit, is("no-commit") ? seq + 1 : seq);
    static uint32_t n_steps;
    if (is("noisy") && n_steps++ % 5 == 2 && n_steps < 10) say_nonsense(); /* twice */
    if (is("very-noisy")) say_nonsense();
    if (is("unknown-step")) seq += 1000;
    if (is("result-rows")) result.n_rows = UINT32_MAX;
    if (is("result-round")) result.round = 1;
    if (is("result-group")) result.group = UINT32_MAX;
    if (is("short-result")) {
        say(WIRE_RESULT, seq, &result, 4);
        return;
    }
    if (is("garbage")) {
        unsigned char noise[333];
        for (size_t i = 0; i < sizeof noise; i++) noise[i] = (unsigned char)(i * 97 + 5);
        zmq_send(sock, noise, sizeof noise, 0);
        return;
    }
    if (is("huge")) {
        size_t n = 64u << 20;
        void *huge = calloc(1, n);
        zmq_send(sock, huge, n, 0);
        free(huge);
        return;
    }
    if (is("empty")) {
        zmq_send(sock, "", 0, 0);
        return;
    }
    if (is("fault-text")) {
        wire_fault f = {.code = ST_OK, .seq = seq};
        memset(f.text, '\n', sizeof f.text - 1);
        memcpy(f.text, "two\nlines\x1b[31m of it", 20);
        say(WIRE_FAULT, 0, &f, sizeof f);
        return;
    }
    if (is("second-hello")) {
        wire_hello hello = {.build = MEMRA_BUILD_ID};
        say(WIRE_HELLO, 0, &hello, sizeof hello);
        return;
    }
    say(WIRE_RESULT, seq, &result, sizeof result);
    if (is("twice")) say(WIRE_RESULT, seq, &result, sizeof result);
}

static void lie_in_words(run_block *b)
{
    stage_words *w = &b->stage[stage_i];
    memset(w, 0xff, sizeof *w);
    b->magic = b->version = b->n_stages = b->bytes = 0xffffffffu;
}

/* Heartbeat, as a stage has one; the socket belongs to this thread too. */
static void serve(run_block *b)
{
    readback r = {0};
    errmsg e = {0};
    static _Alignas(16) unsigned char frame[1 << 20];
    for (uint64_t beat = 1;; beat++) {
        zmq_pollitem_t item = {.socket = sock, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, 20) < 0) return;
        if (!is("no-heartbeat")) atomic_store(&b->stage[stage_i].heartbeat, beat);
        if ((item.revents & ZMQ_POLLIN) == 0) continue;
        int n = zmq_recv(sock, frame, sizeof frame, 0);
        if (n < (int)sizeof(wire_header)) continue;
        const wire_header *h = wire_head(frame);
        if (h->kind == WIRE_CONFIG) {
            const wire_config *c = wire_body(frame);
            if (readback_map(&r, c->readback_fd, &e) != ST_OK) exit(9);
            if (is("words")) lie_in_words(b);
            if (is("readback-header")) memset(r.map, 0xff, sizeof(readback_header));
            if (is("noisy-at-first")) say_nonsense();
            if (is("probed-early")) {
                wire_probed p = {0};
                say(WIRE_PROBED, 0, &p, sizeof p);
            }
            say_loaded();
            if (is("loaded-twice")) say_loaded();
        }
        if (h->kind == WIRE_PROBE) {
            wire_probed p = {0};
            say(WIRE_PROBED, 0, &p, sizeof p);
        }
        if (h->kind == WIRE_REPLAY) { /* whatever it was, we have it */
            static uint32_t n_replays;
            if ((wire_step_view(frame).step->flags & STEP_RESET) != 0) n_replays = 0;
            wire_replayed done = {.n = ++n_replays};
            say(WIRE_REPLAYED, 0, &done, sizeof done);
        }
        if (h->kind == WIRE_STEP && !is("no-heartbeat")) on_step(frame, &r);
        if (h->kind == WIRE_STOP) exit(0);
    }
}

int main(int argc, char **argv)
{
    const char *endpoint = NULL;
    int block_fd = -1;
    what = getenv("MEMRA_FAKE");
    if (what == NULL) return 2;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--endpoint") == 0) endpoint = argv[i + 1];
        if (strcmp(argv[i], "--stage") == 0) stage_i = (uint32_t)atoi(argv[i + 1]);
        if (strcmp(argv[i], "--epoch") == 0) epoch = (uint32_t)atoi(argv[i + 1]);
        if (strcmp(argv[i], "--run-block-fd") == 0) block_fd = atoi(argv[i + 1]);
    }
    run_block *b;
    errmsg e = {0};
    if (endpoint == NULL || run_block_map(&b, block_fd, &e) != ST_OK) return 2;
    void *zmq = zmq_ctx_new();
    sock = zmq_socket(zmq, ZMQ_PAIR);
    if (zmq_connect(sock, endpoint) != 0) return 2;
    if (is("silent")) {
        for (;;) sleep(1);
    }
    wire_hello hello = {.build = MEMRA_BUILD_ID};
    say(WIRE_HELLO, 0, &hello, sizeof hello);
    serve(b);
    return 0;
}
