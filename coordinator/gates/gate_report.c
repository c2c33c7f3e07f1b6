#include "coordinator/gates/gate_report.h"

#include "common/amount.h"
#include "coordinator/commands/output.h"
#include "coordinator/text/text_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#define CUTS_BYTES 512u

static void flush(const gate_report *r)
{
    if (r->to == stdout)
        output_flush();
    else
        fflush(r->to);
}

status gate_report_arrived(const gate_report *r, errmsg *e)
{
    return r->to == stdout ? output_flushed(e) : ST_OK;
}

void gate_arm_begin(gate_arm *a, const char *gate, const char *format, ...)
{
    *a = (gate_arm){.gate = gate, .green = true};
    va_list args;
    va_start(args, format);
    vsnprintf(a->name, sizeof a->name, format, args);
    va_end(args);
}

void gate_arm_again(gate_arm *a)
{
    a->tries++;
    a->n_rows = a->n_values = a->n_tokens = 0;
    a->crossings = a->bytes = a->chunks = a->overlaps = 0;
    a->batches = a->prime_batches = a->rounds = a->ahead = 0;
    a->verifies = a->drafted = a->accepted = a->shared_rows = 0;
}

void gate_arm_red(gate_arm *a, const char *format, ...)
{
    a->green = false;
    if (a->n_wrong++ > 0) return;
    va_list args;
    va_start(args, format);
    vsnprintf(a->why, sizeof a->why, format, args);
    va_end(args);
}

/* "1,3" for the fence 0 1 3 5; "" for one stage. */
static void cuts_text(char out[CUTS_BYTES], const fence *f)
{
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t s = 1; s < f->n_stages; s++) {
        int w = snprintf(out + n, CUTS_BYTES - n, "%s%u", s > 1 ? "," : "", f->at[s]);
        if (w < 0 || (size_t)w >= CUTS_BYTES - n) return;
        n += (size_t)w;
    }
}

static void print_title(FILE *to, const gate_arm *a)
{
    fprintf(to, "%s", a->gate);
    if (a->cuts.n_stages > 0) fprintf(to, " N=%u", a->cuts.n_stages);
    if (a->cuts.n_stages > 1) {
        char cuts[CUTS_BYTES];
        cuts_text(cuts, &a->cuts);
        fprintf(to, " cuts %s", cuts);
    }
    if (a->name[0] != '\0') fprintf(to, " %s", a->name);
}

static void print_why(FILE *to, const gate_arm *a)
{
    fprintf(to, "%s", a->why);
    if (a->n_wrong > 1) fprintf(to, " (and %u more)", a->n_wrong - 1);
}

/* ", 3 crossings": what there is none of is left out. */
static void print_count(FILE *to, const char **between, uint64_t n, const char *one,
                        const char *many)
{
    if (n == 0) return;
    fprintf(to, "%s%" PRIu64 " %s", *between, n, n == 1 ? one : many);
    *between = ", ";
}

static void print_done(FILE *to, const gate_arm *a)
{
    const char *between = "";
    if (a->n_rows > 0) {
        fprintf(to, "%" PRIu64 " row%s x %" PRIu64 " logits", a->n_rows, plural(a->n_rows),
                a->n_values / a->n_rows);
        if (a->n_tokens > 0)
            fprintf(to, " and %" PRIu64 " token%s", a->n_tokens, plural(a->n_tokens));
        fputs(" equal", to);
        between = ", ";
    } else if (a->n_tokens > 0) {
        fprintf(to, "%" PRIu64 " tokens equal", a->n_tokens);
        between = ", ";
    }
    print_count(to, &between, a->probes, "probe", "probes");
    print_count(to, &between, a->chunks, "chunk walked", "chunks walked");
    print_count(to, &between, a->crossings, "crossing", "crossings");
    print_count(to, &between, a->bytes, "byte", "bytes");
    print_count(to, &between, a->overlaps, "overlap", "overlaps");
    print_count(to, &between, a->batches, "batch", "batches");
    print_count(to, &between, a->prime_batches, "prompt batch", "prompt batches");
    print_count(to, &between, a->rounds, "round", "rounds");
    print_count(to, &between, a->ahead, "round ahead", "rounds ahead");
    print_count(to, &between, a->verifies, "verify step", "verify steps");
    print_count(to, &between, a->drafted, "draft", "drafts");
    print_count(to, &between, a->accepted, "accepted", "accepted");
    print_count(to, &between, a->shared_rows, "row shared", "rows shared");
    print_count(to, &between, a->unsplit, "unsplit step", "unsplit steps");
    if (a->tries > 1) fprintf(to, " in %u tries", a->tries);
}

static json_t *arm_object(const gate_arm *a)
{
    json_t *cuts = json_array();
    for (uint32_t s = 1; s < a->cuts.n_stages; s++)
        json_array_append_new(cuts, json_integer(a->cuts.at[s]));
    return json_pack(
        "{s:s, s:o, s:I, s:o, s:b, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "gate", a->gate, "arm", text_json(a->name), "stages", (json_int_t)a->cuts.n_stages, "cuts",
        cuts, "green", a->green, "why", text_json(a->why), "wrong", (json_int_t)a->n_wrong,
        "tries", (json_int_t)a->tries, "rows", (json_int_t)a->n_rows, "logits",
        (json_int_t)a->n_values, "crossings", (json_int_t)a->crossings, "bytes",
        (json_int_t)a->bytes, "chunks", (json_int_t)a->chunks, "overlaps", (json_int_t)a->overlaps,
        "probes", (json_int_t)a->probes, "batches", (json_int_t)a->batches, "prompt_batches",
        (json_int_t)a->prime_batches, "rounds", (json_int_t)a->rounds, "rounds_ahead",
        (json_int_t)a->ahead, "verify_steps", (json_int_t)a->verifies, "drafted",
        (json_int_t)a->drafted, "accepted", (json_int_t)a->accepted, "shared_rows",
        (json_int_t)a->shared_rows, "unsplit_steps", (json_int_t)a->unsplit);
}

static void print_object(FILE *to, json_t *o)
{
    json_dumpf(o, to, JSON_COMPACT);
    fputc('\n', to);
    json_decref(o);
}

static void count(gate_report *r, const gate_arm *a)
{
    r->n_rows += a->n_rows;
    r->n_values += a->n_values;
    r->crossings += a->crossings;
    r->bytes += a->bytes;
    r->chunks += a->chunks;
    r->overlaps += a->overlaps;
    r->probes += a->probes;
}

void gate_report_arm(gate_report *r, const gate_arm *a)
{
    r->n_arms++;
    if (!a->green) r->n_red++;
    count(r, a);
    if (r->json) {
        print_object(r->to, arm_object(a));
    } else {
        fprintf(r->to, "%s %u - ", a->green ? "ok" : "not ok", r->n_arms);
        print_title(r->to, a);
        fputs(": ", r->to);
        if (a->green)
            print_done(r->to, a);
        else
            print_why(r->to, a);
        fputc('\n', r->to);
    }
    flush(r);
}

void gate_report_canary(gate_report *r, const gate_arm *a, const char *broken, const char *because)
{
    bool noticed = !a->green && strstr(a->why, because) != NULL;
    r->n_canaries++;
    if (!noticed) r->n_unnoticed++;
    count(r, a);
    if (r->json) {
        json_t *o = arm_object(a);
        json_object_set_new(o, "canary", text_json(broken));
        json_object_set_new(o, "noticed", json_boolean(noticed));
        print_object(r->to, o);
    } else {
        fprintf(r->to, "%s   %s canary, %s: ", noticed ? "red" : "GREEN", a->gate, broken);
        if (a->green)
            fputs("nothing was noticed", r->to);
        else
            print_why(r->to, a);
        if (!noticed && !a->green) fprintf(r->to, " (which is not \"%s\")", because);
        fputc('\n', r->to);
    }
    flush(r);
}

void gate_report_note(gate_report *r, const char *format, ...)
{
    if (r->json) return;
    fputs("# ", r->to);
    va_list args;
    va_start(args, format);
    vfprintf(r->to, format, args);
    va_end(args);
    fputc('\n', r->to);
    flush(r);
}

static void verdict_line(const gate_report *r, const char *gates, bool green)
{
    if (r->n_canaries > 0) {
        if (green)
            fprintf(r->to, "canary stayed green: %s: %u of %u breakage%s went unnoticed\n", gates,
                    r->n_unnoticed, r->n_canaries, plural(r->n_canaries));
        else
            fprintf(r->to, "red: %s: all %u canaries were noticed\n", gates, r->n_canaries);
        return;
    }
    fprintf(r->to, "1..%u\n", r->n_arms);
    if (!green) {
        fprintf(r->to, "# red: %s: %u of %u arm%s\n", gates, r->n_red, r->n_arms,
                plural(r->n_arms));
        return;
    }
    fprintf(r->to,
            "# green: %s: %u arm%s, %" PRIu64 " logits equal in every bit, %" PRIu64
            " crossing%s, %" PRIu64 " chunk%s walked, %" PRIu64 " overlap%s, %" PRIu64 " probe%s\n",
            gates, r->n_arms, plural(r->n_arms), r->n_values, r->crossings, plural(r->crossings),
            r->chunks, plural(r->chunks), r->overlaps, plural(r->overlaps), r->probes,
            plural(r->probes));
}

int gate_report_verdict(gate_report *r, const char *gates)
{
    bool canaries = r->n_canaries > 0;
    bool green = canaries ? r->n_unnoticed > 0 : r->n_arms > 0 && r->n_red == 0;
    if (r->json) {
        print_object(
            r->to,
            json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                      "verdict", green ? "green" : "red", "gates", gates, "canary", canaries,
                      "arms", (json_int_t)r->n_arms, "red", (json_int_t)r->n_red, "canaries",
                      (json_int_t)r->n_canaries, "unnoticed", (json_int_t)r->n_unnoticed, "rows",
                      (json_int_t)r->n_rows, "logits", (json_int_t)r->n_values, "crossings",
                      (json_int_t)r->crossings, "bytes", (json_int_t)r->bytes, "chunks",
                      (json_int_t)r->chunks, "overlaps", (json_int_t)r->overlaps, "probes",
                      (json_int_t)r->probes));
    } else {
        verdict_line(r, gates, green);
    }
    flush(r);
    return green ? 0 : 1;
}
