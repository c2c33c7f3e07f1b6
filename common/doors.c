/* Each door is parsed on its own first; the rules between doors come last, so that a message about
 * two doors never hides a value that is wrong by itself. */
#include "common/doors.h"
#include "common/doortext.h"
#include "common/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGES_RULE  "N with 2 <= N <= the model's layers (64 at most); 0 and 1: one stage"
#define SPLITS_RULE  "STAGES - 1 cuts, strictly increasing, inside (0, n_layers); or even; or auto"
#define SPLIT_RULE   "one cut inside (0, n_layers), with STAGES=2 and without SPLITS"
#define DEVICES_RULE "one of CUDA ordinal, cpu, cpu:NODE, auto per stage; or auto alone"
#define STREAMS_RULE "0 or 1; 0: all stages in one process, on one stream of one device"
#define SHARD_RULE   "0 or 1; 0: all weights on the device of stage 0, the others read them there"
#define OVERLAP_RULE "0 or 1; 0: steps use one slot of each boundary, not both in turn"
#define PIPE_RULE    "0 or 1; 0: the chunks of a prompt walk the stages one after the other"
#define BATCH_RULE   "0 or 1; 0: decode walks unsplit, see ALLOW_UNSPLIT_BATCH"
#define SPEC_RULE    "0 or 1; 0: verified drafts walk unsplit, see ALLOW_UNSPLIT_BATCH"
#define PRIME_RULE   "0 or 1; 0: prompts walk unsplit, all layers on stage 0"
#define ALLOW_RULE "0 or 1; 1: BATCH_PP=0 and SPEC_PP=0 with stages on several devices, to measure"
#define FAULT_RULE                                                                                 \
    "stage=S|all,at=PLACE,step=N,kind=KIND,every=1; several joined by ';'. KIND: kill, stop, "     \
    "hang, exit, slow:MS, cuda, oom, nan, corrupt, badmsg; PLACE: load, prime, decode, idle, "     \
    "recovery, asked (by a program), left out: any but that; step: its number, from 1, of prompt " \
    "chunks and steps of up to 32 tokens, left out: the first that fits; every=1: whenever it "    \
    "fits, left out: once per run and stage"

/* id, variable, flag, rule */
#define DOOR_LIST(X)                                                                               \
    X(DOOR_STAGES, "MEMRA_PP_STAGES", "stages", STAGES_RULE)                                       \
    X(DOOR_SPLITS, "MEMRA_PP_SPLITS", "splits", SPLITS_RULE)                                       \
    X(DOOR_SPLIT, "MEMRA_PP_SPLIT", "split", SPLIT_RULE)                                           \
    X(DOOR_DEVICES, "MEMRA_PP_DEVICES", "devices", DEVICES_RULE)                                   \
    X(DOOR_SHARD, "MEMRA_PP_SHARD", "shard", SHARD_RULE)                                           \
    X(DOOR_STREAMS, "MEMRA_PP_STREAMS", "streams", STREAMS_RULE)                                   \
    X(DOOR_TRANSPORT, "MEMRA_PP_TRANSPORT", "transport", "auto, ipc, nccl, host or shm")           \
    X(DOOR_SIGNAL, "MEMRA_PP_SIGNAL", "signal",                                                    \
      "auto, event, memop or spin; how transport ipc announces a slot")                            \
    X(DOOR_FAULT, "MEMRA_PP_FAULT", "fault", FAULT_RULE)                                           \
    X(DOOR_OVERLAP, "MEMRA_PP_OVERLAP", "overlap", OVERLAP_RULE)                                   \
    X(DOOR_BATCH_PP, "MEMRA_BATCH_PP", "batch-pp", BATCH_RULE)                                     \
    X(DOOR_SPEC_PP, "MEMRA_SPEC_PP", "spec-pp", SPEC_RULE)                                         \
    X(DOOR_PRIME_PP, "MEMRA_PRIME_PP", "prime-pp", PRIME_RULE)                                     \
    X(DOOR_PRIME_PIPE, "MEMRA_PRIME_PIPE", "prime-pipe", PIPE_RULE)                                \
    X(DOOR_PRIME_CHUNK, "MEMRA_PRIME_CHUNK", "prime-chunk", "rows, 1 <= T <= 4096")                \
    X(DOOR_ALLOW_UNSPLIT_BATCH, "MEMRA_PP_ALLOW_UNSPLIT_BATCH", "allow-unsplit-batch", ALLOW_RULE)

static const door_info table[DOOR_COUNT] = {
#define X(id, variable, flag, rule) [id] = {variable, flag, rule},
    DOOR_LIST(X)
#undef X
};
static const char *const dashed_flag[DOOR_COUNT] = {
#define X(id, variable, flag, rule) [id] = "--" flag,
    DOOR_LIST(X)
#undef X
};

static const char *const transport_words[] = {"auto", "ipc", "nccl", "host", "shm", NULL};
static const char *const signal_words[] = {"auto", "event", "memop", "spin", NULL};

/* One value being parsed. */
typedef struct {
    doors *d;
    door_id id;
    const char *text;
    errmsg *e;
} door_text;

/* Refuse the value because of why, which follows it in the line. */
static status refuse(const door_text *t, const char *why)
{
    char quoted[DOORTEXT_QUOTE_BYTES];
    return errmsg_set(t->e, ST_BAD_DOOR, "%s=%s %s; rule: %s", doors_name(t->d, t->id),
                      doortext_quote(quoted, t->text, strlen(t->text)), why, table[t->id].rule);
}

/* The same for one element of a list. */
static status refuse_item(const door_text *t, const char *s, size_t n, const char *why)
{
    char quoted[DOORTEXT_QUOTE_BYTES], item[DOORTEXT_QUOTE_BYTES];
    size_t shown = n < 16 ? n : 16;
    return errmsg_set(t->e, ST_BAD_DOOR, "%s=%s: %s%s %s; rule: %s", doors_name(t->d, t->id),
                      doortext_quote(quoted, t->text, strlen(t->text)),
                      doortext_quote(item, s, shown), shown < n ? ".." : "", why,
                      table[t->id].rule);
}

/* The same because another door says otherwise; other is shown as it was given. */
static status refuse_beside(const door_text *t, const door_values *v, door_id other,
                            const char *why)
{
    char quoted[DOORTEXT_QUOTE_BYTES], beside[DOORTEXT_QUOTE_BYTES] = "unset";
    const char *text = v->value[other];
    if (text != NULL && *text != '\0')
        doortext_quote(beside, text, strlen(text));
    else if (other == DOOR_STAGES && v->default_stages > 0)
        snprintf(beside, sizeof beside, "unset, %u by default (--stages N says otherwise)",
                 v->default_stages);
    return errmsg_set(t->e, ST_BAD_DOOR, "%s=%s %s %s=%s; rule: %s", doors_name(t->d, t->id),
                      doortext_quote(quoted, t->text, strlen(t->text)), why,
                      doors_name(t->d, other), beside, table[t->id].rule);
}

static status parse_number(const door_text *t, uint64_t max, uint32_t *out)
{
    uint64_t value = 0;
    number_result r = doortext_number(t->text, strlen(t->text), max, &value);
    if (r == NUMBER_NOT_DIGITS) return refuse(t, "is not decimal digits only");
    if (r == NUMBER_TOO_BIG) return refuse(t, "is too big");
    *out = (uint32_t)value;
    return ST_OK;
}

static status parse_boolean(const door_text *t, bool *out)
{
    uint32_t value = 0;
    TRY(parse_number(t, 1, &value));
    *out = value == 1;
    return ST_OK;
}

/* words: a NULL-terminated list. *out becomes the index. */
static status parse_word(const door_text *t, const char *const *words, uint32_t *out)
{
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(t->text, words[i]) != 0) continue;
        *out = i;
        return ST_OK;
    }
    return refuse(t, "is none of its words");
}

static void set_stages(doors *d, uint32_t n)
{
    d->stages_set = n >= 2;
    d->n_stages = n >= 2 ? n : 1;
}

static status parse_stages(const door_text *t)
{
    uint32_t n = 0;
    TRY(parse_number(t, STAGES_MAX, &n));
    set_stages(t->d, n);
    return ST_OK;
}

static status parse_cuts(const door_text *t)
{
    doors *d = t->d;
    const char *at = t->text, *s;
    size_t n;
    while (doortext_next(&at, ',', &s, &n)) {
        uint64_t cut = 0;
        number_result r = doortext_number(s, n, UINT32_MAX, &cut);
        if (r == NUMBER_NOT_DIGITS) return refuse_item(t, s, n, "is not a cut in decimal digits");
        if (r == NUMBER_TOO_BIG) return refuse_item(t, s, n, "is too big");
        if (cut == 0) return refuse_item(t, s, n, "is not a cut, no layer stands before it");
        if (d->n_cuts > 0 && cut <= d->cut[d->n_cuts - 1]) {
            return refuse_item(t, s, n, "is not above the cut before it");
        }
        if (d->n_cuts == STAGES_MAX - 1) return refuse_item(t, s, n, "is one cut too many");
        d->cut[d->n_cuts++] = (uint32_t)cut;
    }
    d->splits = SPLITS_LIST;
    return ST_OK;
}

static status parse_splits(const door_text *t)
{
    if (strcmp(t->text, "even") == 0) return ST_OK;
    if (strcmp(t->text, "auto") != 0) return parse_cuts(t);
    t->d->splits = SPLITS_AUTO;
    return ST_OK;
}

static status parse_split(const door_text *t)
{
    uint32_t cut = 0;
    TRY(parse_number(t, UINT32_MAX, &cut));
    if (cut == 0) return refuse(t, "is not a cut, no layer stands before it");
    t->d->splits = SPLITS_LIST;
    t->d->split_old = true;
    t->d->n_cuts = 1;
    t->d->cut[0] = cut;
    return ST_OK;
}

static status parse_device(const door_text *t, const char *s, size_t n, device_door *out)
{
    *out = (device_door){.kind = DEVICE_AUTO};
    if (doortext_is(s, n, "auto")) return ST_OK;
    out->kind = DEVICE_CPU;
    if (doortext_is(s, n, "cpu")) return ST_OK;
    bool node = n >= 4 && memcmp(s, "cpu:", 4) == 0;
    uint64_t index = 0;
    number_result r = node ? doortext_number(s + 4, n - 4, UINT32_MAX, &index)
                           : doortext_number(s, n, UINT32_MAX, &index);
    if (r == NUMBER_NOT_DIGITS) return refuse_item(t, s, n, "is not a device");
    if (r == NUMBER_TOO_BIG) return refuse_item(t, s, n, "is too big");
    out->kind = node ? DEVICE_CPU_NODE : DEVICE_CUDA;
    out->index = (uint32_t)index;
    return ST_OK;
}

static status parse_devices(const door_text *t)
{
    const char *at = t->text, *s;
    size_t n;
    while (doortext_next(&at, ',', &s, &n)) {
        device_door device;
        TRY(parse_device(t, s, n, &device));
        if (t->d->n_devices == STAGES_MAX) return refuse_item(t, s, n, "is one device too many");
        t->d->device[t->d->n_devices++] = device;
    }
    return ST_OK;
}

static status parse_fault(const door_text *t)
{
    TRY(fault_parse_as(&t->d->faults, doors_name(t->d, t->id), t->text, t->e));
    memcpy(t->d->fault_text, t->text, strlen(t->text) + 1); /* fault_parse_as bounds it */
    return ST_OK;
}

static status parse_prime_chunk(const door_text *t)
{
    _Static_assert(WIRE_ROWS_MAX == 4096, "its rule says so");
    TRY(parse_number(t, WIRE_ROWS_MAX, &t->d->step.prime_chunk));
    if (t->d->step.prime_chunk == 0) return refuse(t, "is not a number of rows");
    return ST_OK;
}

static status parse_door(const door_text *t)
{
    doors *d = t->d;
    uint32_t word = 0;
    switch (t->id) {
    case DOOR_STAGES:
        return parse_stages(t);
    case DOOR_SPLITS:
        return parse_splits(t);
    case DOOR_SPLIT:
        return parse_split(t);
    case DOOR_DEVICES:
        return parse_devices(t);
    case DOOR_SHARD:
        return parse_boolean(t, &d->shard);
    case DOOR_STREAMS:
        return parse_boolean(t, &d->streams);
    case DOOR_TRANSPORT:
        TRY(parse_word(t, transport_words, &word));
        d->transport = (transport_kind)word;
        return ST_OK;
    case DOOR_SIGNAL:
        TRY(parse_word(t, signal_words, &word));
        d->signal = (signal_kind)word;
        return ST_OK;
    case DOOR_FAULT:
        return parse_fault(t);
    case DOOR_OVERLAP:
        return parse_boolean(t, &d->step.overlap);
    case DOOR_BATCH_PP:
        return parse_boolean(t, &d->step.batch_pp);
    case DOOR_SPEC_PP:
        return parse_boolean(t, &d->step.spec_pp);
    case DOOR_PRIME_PP:
        return parse_boolean(t, &d->step.prime_pp);
    case DOOR_PRIME_PIPE:
        return parse_boolean(t, &d->step.prime_pipe);
    case DOOR_PRIME_CHUNK:
        return parse_prime_chunk(t);
    case DOOR_ALLOW_UNSPLIT_BATCH:
        return parse_boolean(t, &d->step.allow_unsplit_batch);
    case DOOR_COUNT:
        break;
    }
    CHECK(!"a door without a parser");
    return ST_BAD_DOOR;
}

static bool is_set(const door_values *v, door_id id)
{
    return v->value[id] != NULL && v->value[id][0] != '\0';
}

/* A fault of a stage that has no process; `beside` says why, `fix` what would do. */
static status refuse_stage(const doors *d, uint32_t stage, const char *beside, const char *fix,
                           errmsg *e)
{
    char quoted[DOORTEXT_QUOTE_BYTES];
    return errmsg_set(e, ST_BAD_DOOR,
                      "%s=%s names stage %u, and %s; rule: S is 0 to one less than the stages: %s",
                      doors_name(d, DOOR_FAULT),
                      doortext_quote(quoted, d->fault_text, strlen(d->fault_text)), stage, beside,
                      fix);
}

#define FIX_BYTES 48
static const char *more_stages(char out[FIX_BYTES], uint32_t stage)
{
    if (stage < STAGES_MAX)
        snprintf(out, FIX_BYTES, "--stages %u or more has it", stage + 1);
    else
        snprintf(out, FIX_BYTES, "%u is the most there can be", STAGES_MAX);
    return out;
}

/* The faults name stages that there are. */
static status check_faulted(const doors *d, const door_values *v, errmsg *e)
{
    char quoted[DOORTEXT_QUOTE_BYTES], fix[FIX_BYTES];
    char beside[sizeof quoted + 64] = "nothing asks for so many stages";
    const char *asked = v->value[DOOR_STAGES];
    if (is_set(v, DOOR_STAGES))
        snprintf(beside, sizeof beside, "%s=%s has no such stage", doors_name(d, DOOR_STAGES),
                 doortext_quote(quoted, asked, strlen(asked)));
    else if (v->default_stages > 0)
        snprintf(beside, sizeof beside, "by default there are %u", v->default_stages);
    for (uint32_t i = 0; i < d->faults.n && !v->stages_elsewhere; i++) {
        uint32_t stage = d->faults.list[i].stage;
        if (stage == FAULT_STAGE_ALL || stage == 0) continue;
        if (stage >= d->n_stages) return refuse_stage(d, stage, beside, more_stages(fix, stage), e);
        if (d->streams) continue;
        snprintf(beside, sizeof beside, "%s=0 puts it into the process of stage 0",
                 doors_name(d, DOOR_STREAMS));
        return refuse_stage(d, stage, beside, "name stage 0, or all", e);
    }
    return ST_OK;
}

static status check_together(doors *d, const door_values *v, errmsg *e)
{
    door_text splits = {d, DOOR_SPLITS, v->value[DOOR_SPLITS], e};
    door_text split = {d, DOOR_SPLIT, v->value[DOOR_SPLIT], e};
    door_text devices = {d, DOOR_DEVICES, v->value[DOOR_DEVICES], e};
    if (is_set(v, DOOR_SPLIT)) {
        if (is_set(v, DOOR_SPLITS)) return refuse_beside(&split, v, DOOR_SPLITS, "stands beside");
        if (d->n_stages != 2) return refuse_beside(&split, v, DOOR_STAGES, "cuts once, but");
    } else if (d->splits == SPLITS_LIST && d->n_cuts != d->n_stages - 1) {
        return refuse_beside(&splits, v, DOOR_STAGES, "has a wrong number of cuts for");
    }
    bool lone_auto = d->n_devices == 1 && d->device[0].kind == DEVICE_AUTO;
    if (d->n_devices != 0 && d->n_devices != d->n_stages && !lone_auto && !v->stages_elsewhere) {
        return refuse_beside(&devices, v, DOOR_STAGES, "has a wrong number of devices for");
    }
    door_text transport = {d, DOOR_TRANSPORT, v->value[DOOR_TRANSPORT], e};
    door_text how = {d, DOOR_SIGNAL, v->value[DOOR_SIGNAL], e};
    if (!d->streams && d->transport != TRANSPORT_AUTO)
        return refuse_beside(&transport, v, DOOR_STREAMS, "forces what nothing crosses with");
    if (!d->streams && d->signal != SIGNAL_AUTO)
        return refuse_beside(&how, v, DOOR_STREAMS, "forces what nobody waits for with");
    return check_faulted(d, v, e);
}

static status parse_all(doors *d, const door_values *v, errmsg *e)
{
    if (!is_set(v, DOOR_STAGES)) {
        set_stages(d, v->default_stages);
        d->stages_default = d->stages_set;
    }
    for (uint32_t id = 0; id < DOOR_COUNT; id++) {
        if (!is_set(v, (door_id)id)) continue;
        /* Beside each other they are refused below; the old spelling must not mix its cut in. */
        if (id == DOOR_SPLIT && is_set(v, DOOR_SPLITS)) continue;
        door_text t = {d, (door_id)id, v->value[id], e};
        TRY(parse_door(&t));
    }
    return check_together(d, v, e);
}

const door_info *doors_table(uint32_t *n)
{
    if (n != NULL) *n = DOOR_COUNT;
    return table;
}

void doors_from_environment(door_values *v)
{
    *v = (door_values){0};
    for (uint32_t id = 0; id < DOOR_COUNT; id++)
        v->value[id] = getenv(table[id].variable);
}

static bool begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* The door whose name takes the fewest edits. */
static const char *nearest_door(const char *name, uint32_t *edits)
{
    const char *nearest = table[0].variable;
    *edits = UINT32_MAX;
    for (uint32_t id = 0; id < DOOR_COUNT; id++) {
        uint32_t n = doortext_edits(name, table[id].variable);
        if (n >= *edits) continue;
        *edits = n;
        nearest = table[id].variable;
    }
    return nearest;
}

/* ASCII only, whatever the locale. */
static void upper_of(char *out, const char *name)
{
    do {
        *out++ = *name >= 'a' && *name <= 'z' ? (char)(*name - 'a' + 'A') : *name;
    } while (*name++ != '\0');
}

status doors_check_names(const char *const *environment, errmsg *e)
{
    static const char *const families[] = {"MEMRA_PP_", "MEMRA_BATCH_", "MEMRA_SPEC_",
                                           "MEMRA_PRIME_"};
    for (; *environment != NULL; environment++) {
        const char *equals = strchr(*environment, '=');
        if (equals == NULL || equals[1] == '\0') continue;
        char name[DOORTEXT_NAME_BYTES + 2], upper[sizeof name];
        snprintf(name, sizeof name, "%.*s", (int)(equals - *environment), *environment);
        upper_of(upper, name);
        if (!begins(upper, "MEMRA")) continue;
        bool ours = false, is = strcmp(name, upper) == 0;
        uint32_t edits;
        const char *nearest = nearest_door(upper, &edits);
        for (size_t i = 0; i < sizeof families / sizeof *families; i++)
            ours = ours || begins(upper, families[i]);
        if ((is && edits == 0) || (!ours && edits > DOORS_EDITS_MAX)) continue;
        char quoted[DOORTEXT_QUOTE_BYTES];
        return errmsg_set(e, ST_BAD_DOOR,
                          "%s=%s is set and there is no such door; the nearest is %s%s", name,
                          doortext_quote(quoted, equals + 1, strlen(equals + 1)), nearest,
                          ours ? " (--help lists all)" : "");
    }
    return ST_OK;
}

int doors_flag_index(const char *flag)
{
    for (uint32_t id = 0; id < DOOR_COUNT; id++) {
        if (strcmp(flag, table[id].flag) == 0) return (int)id;
    }
    return -1;
}

const char *doors_name(const doors *d, door_id id)
{
    CHECK((unsigned)id < DOOR_COUNT);
    return d->from_flag[id] ? dashed_flag[id] : table[id].variable;
}

doors doors_default(void)
{
    return (doors){
        .n_stages = 1,
        .shard = true,
        .streams = true,
        .step = {.overlap = true,
                 .batch_pp = true,
                 .spec_pp = true,
                 .prime_pp = true,
                 .prime_pipe = true,
                 .ahead = true},
    };
}

const char *transport_word(transport_kind k)
{
    CHECK((unsigned)k <= TRANSPORT_SHM);
    return transport_words[k];
}

const char *signal_word(signal_kind k)
{
    CHECK((unsigned)k <= SIGNAL_SPIN);
    return signal_words[k];
}

status doors_parse(doors *out, const door_values *v, errmsg *e)
{
    *out = doors_default();
    memcpy(out->from_flag, v->from_flag, sizeof out->from_flag);
    status s = parse_all(out, v, e);
    if (s != ST_OK) *out = doors_default();
    return s;
}

status doors_check_faults(const doors *d, uint32_t n_stages, const char *said, errmsg *e)
{
    char beside[96], fix[FIX_BYTES];
    snprintf(beside, sizeof beside, "%s asks for %u at most, which are numbered from 0", said,
             n_stages);
    for (uint32_t i = 0; i < d->faults.n; i++) {
        uint32_t stage = d->faults.list[i].stage;
        if (stage != FAULT_STAGE_ALL && stage >= n_stages)
            return refuse_stage(d, stage, beside, more_stages(fix, stage), e);
    }
    return ST_OK;
}

void doors_deal_devices(doors *d)
{
    bool lone_auto = d->n_devices == 1 && d->device[0].kind == DEVICE_AUTO;
    if (d->n_devices == 0 || lone_auto) return;
    for (uint32_t s = d->n_devices; s < d->n_stages; s++)
        d->device[s] = d->device[s % d->n_devices];
    d->n_devices = d->n_stages;
}
