#include "common/fault.h"
#include "common/doortext.h"

#include <string.h>

#define FAULT_RULE "entries stage=S|all,at=PLACE,step=N,kind=KIND,every=1 joined by ';'"

typedef struct {
    const char *word;
    int value;
} fault_word;

static const fault_word at_words[] = {
    {"load", FAULT_AT_LOAD}, {"prime", FAULT_AT_PRIME}, {"decode", FAULT_AT_DECODE},
    {"idle", FAULT_AT_IDLE}, {"recovery", FAULT_AT_RECOVERY}, {"asked", FAULT_AT_ASKED}, {NULL, 0},
};
static const fault_word kind_words[] = {
    {"kill", FAULT_KILL},
    {"stop", FAULT_STOP},
    {"hang", FAULT_HANG},
    {"exit", FAULT_EXIT},
    {"corrupt", FAULT_CORRUPT},
    {"cuda", FAULT_CUDA},
    {"oom", FAULT_OOM},
    {"nan", FAULT_NAN},
    {"badmsg", FAULT_BADMSG},
    {NULL, 0},
};

typedef enum { KEY_STAGE, KEY_AT, KEY_STEP, KEY_KIND, KEY_EVERY, KEY_COUNT } fault_key;
static const char *const key_words[KEY_COUNT] = {"stage", "at", "step", "kind", "every"};

/* What is being parsed, for messages. */
typedef struct {
    const char *name;
    errmsg *e;
} fault_text;

static status refuse(const fault_text *t, const char *s, size_t n, const char *why)
{
    char quoted[DOORTEXT_QUOTE_BYTES];
    return errmsg_set(t->e, ST_BAD_DOOR, "%s: %s %s; rule: " FAULT_RULE, t->name,
                      doortext_quote(quoted, s, n), why);
}

static const fault_word *find_word(const fault_word *list, const char *s, size_t n)
{
    for (; list->word != NULL; list++) {
        if (doortext_is(s, n, list->word)) return list;
    }
    return NULL;
}

/* "slow:MS", with the length of the text checked by doortext_number. */
static status parse_slow(fault *f, const fault_text *t, const char *s, size_t n)
{
    uint64_t ms = 0;
    if (doortext_number(s + 5, n - 5, FAULT_SLOW_MS_MAX, &ms) != NUMBER_OK || ms == 0) {
        return refuse(t, s, n, "is not slow:MS with 1 <= MS <= 3600000 milliseconds");
    }
    f->kind = FAULT_SLOW;
    f->slow_ms = (uint32_t)ms;
    return ST_OK;
}

static status parse_kind(fault *f, const fault_text *t, const char *s, size_t n)
{
    if (n >= 5 && memcmp(s, "slow:", 5) == 0) return parse_slow(f, t, s, n);
    const fault_word *word = find_word(kind_words, s, n);
    if (word == NULL) {
        return refuse(t, s, n, "is not a kind (kill, stop, hang, exit, slow:MS, cuda, oom, nan, "
                               "corrupt, badmsg)");
    }
    f->kind = (fault_kind)word->value;
    return ST_OK;
}

static status parse_at(fault *f, const fault_text *t, const char *s, size_t n)
{
    const fault_word *word = find_word(at_words, s, n);
    if (word == NULL)
        return refuse(t, s, n, "is not a place (load, prime, decode, idle, recovery, asked)");
    f->at = (fault_at)word->value;
    return ST_OK;
}

static status parse_value(fault *f, fault_key key, const fault_text *t, const char *s, size_t n)
{
    uint64_t number = 0;
    switch (key) {
    case KEY_STAGE:
        if (doortext_is(s, n, "all")) {
            f->stage = FAULT_STAGE_ALL;
            return ST_OK;
        }
        if (doortext_number(s, n, FAULT_STAGE_ALL - 1, &number) != NUMBER_OK) {
            return refuse(t, s, n, "is not a stage (its number in decimal digits, or all)");
        }
        f->stage = (uint32_t)number;
        return ST_OK;
    case KEY_STEP:
        if (doortext_number(s, n, FAULT_STEP_ANY - 1, &number) != NUMBER_OK) {
            return refuse(t, s, n, "is not a step (a sequence number in decimal digits)");
        }
        f->step = number;
        return ST_OK;
    case KEY_EVERY:
        if (doortext_number(s, n, 1, &number) != NUMBER_OK) {
            return refuse(t, s, n, "is not a value of every (0 or 1)");
        }
        f->every = number == 1;
        return ST_OK;
    case KEY_AT:
        return parse_at(f, t, s, n);
    case KEY_KIND:
    default:
        return parse_kind(f, t, s, n);
    }
}

/* One "key=value" of n bytes; seen: a bit per key of this entry. */
static status parse_pair(fault *f, uint32_t *seen, const fault_text *t, const char *s, size_t n)
{
    const char *equals = memchr(s, '=', n);
    if (equals == NULL) return refuse(t, s, n, "is not key=value");
    size_t key_n = (size_t)(equals - s);
    for (uint32_t key = 0; key < KEY_COUNT; key++) {
        if (!doortext_is(s, key_n, key_words[key])) continue;
        if (*seen & (1u << key)) return refuse(t, s, n, "gives its key a second time");
        *seen |= 1u << key;
        return parse_value(f, (fault_key)key, t, equals + 1, n - key_n - 1);
    }
    return refuse(t, s, n, "has an unknown key (stage, at, step, kind, every)");
}

/* Where a kind can be carried out. */
static bool kind_fits(fault_kind kind, fault_at at)
{
    if (at == FAULT_AT_ASKED)
        return kind != FAULT_OOM && kind != FAULT_NAN; /* whatever is in hand */
    switch (kind) {
    case FAULT_OOM:
        return at == FAULT_AT_LOAD || at == FAULT_AT_RECOVERY;
    case FAULT_NAN:
        return at == FAULT_AT_PRIME || at == FAULT_AT_DECODE || at == FAULT_AT_RECOVERY;
    case FAULT_CORRUPT:
        return at != FAULT_AT_IDLE;
    default:
        return true;
    }
}

static status parse_entry(fault *f, const fault_text *t, const char *s, size_t n)
{
    *f = (fault){.at = FAULT_AT_ANY, .step = FAULT_STEP_ANY};
    uint32_t seen = 0;
    size_t from = 0;
    while (true) {
        const char *comma = memchr(s + from, ',', n - from);
        size_t to = comma != NULL ? (size_t)(comma - s) : n;
        TRY(parse_pair(f, &seen, t, s + from, to - from));
        if (comma == NULL) break;
        from = to + 1;
    }
    if (!(seen & (1u << KEY_STAGE))) return refuse(t, s, n, "has no stage=");
    if (!(seen & (1u << KEY_KIND))) return refuse(t, s, n, "has no kind=");
    bool stepless = f->at != FAULT_AT_ANY && f->at != FAULT_AT_PRIME && f->at != FAULT_AT_DECODE;
    if (f->at != FAULT_AT_ANY && !kind_fits(f->kind, f->at)) {
        return refuse(
            t, s, n,
            f->kind == FAULT_OOM   ? "allocates nothing there (kind=oom: at load or recovery)"
            : f->kind == FAULT_NAN ? "walks no row there (kind=nan: at prime, decode or recovery)"
                                   : "sends no row there (kind=corrupt: anywhere but at idle)");
    }
    if ((seen & (1u << KEY_STEP)) && f->kind == FAULT_OOM)
        return refuse(t, s, n,
                      "names a step, and kind=oom is of load and recovery, outside of any");
    if ((seen & (1u << KEY_STEP)) && stepless)
        return refuse(t, s, n, "names a step where no step is in hand, so it could never happen");
    return ST_OK;
}

static status parse_list(fault_list *out, const fault_text *t, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes > FAULT_TEXT_BYTES_MAX) return refuse(t, text, bytes, "is longer than 511 bytes");
    const char *s;
    size_t n;
    while (doortext_next(&text, ';', &s, &n)) {
        if (out->n == FAULTS_MAX) return refuse(t, s, n, "is one entry too many (at most 16)");
        TRY(parse_entry(&out->list[out->n], t, s, n));
        out->n++;
    }
    return ST_OK;
}

status fault_parse_as(fault_list *out, const char *name, const char *text, errmsg *e)
{
    *out = (fault_list){0};
    if (text == NULL || *text == '\0') return ST_OK;
    fault_text t = {.name = name, .e = e};
    status s = parse_list(out, &t, text);
    if (s != ST_OK) *out = (fault_list){0};
    return s;
}

status fault_parse(fault_list *out, const char *text, errmsg *e)
{
    return fault_parse_as(out, "MEMRA_PP_FAULT", text, e);
}

const fault *fault_match(const fault_list *l, bool fired[FAULTS_MAX], uint32_t stage, fault_at at,
                         uint64_t seq)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const fault *f = &l->list[i];
        if (fired[i]) continue;
        if (f->stage != FAULT_STAGE_ALL && f->stage != stage) continue;
        if (f->at != FAULT_AT_ANY && f->at != at) continue;
        if (f->at == FAULT_AT_ANY && (at == FAULT_AT_ASKED || !kind_fits(f->kind, at))) continue;
        if (f->step != FAULT_STEP_ANY && f->step != seq) continue;
        fired[i] = !f->every;
        return f;
    }
    return NULL;
}
