/* The door texts and the fault text, which people write by hand: any bytes are parsed or refused
 * with one printable line, and what is parsed keeps the promises of doors.h and fault.h. */
#include "common/doors.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_line(const errmsg *e)
{
    CHECK(e->code == ST_BAD_DOOR && e->text[0] != '\0');
    CHECK(strlen(e->text) < sizeof e->text - 1); /* not cut off */
    CHECK(strstr(e->text, "; rule: ") != NULL);
    for (const char *c = e->text; *c != '\0'; c++)
        CHECK(*c >= 0x20 && *c < 0x7f);
}

static void check_faults(const fault_list *l)
{
    CHECK(l->n <= FAULTS_MAX);
    for (uint32_t i = 0; i < l->n; i++) {
        const fault *f = &l->list[i];
        CHECK(f->kind <= FAULT_BADMSG && f->at <= FAULT_AT_ASKED);
        CHECK((f->kind == FAULT_SLOW) == (f->slow_ms != 0) && f->slow_ms <= FAULT_SLOW_MS_MAX);
        bool fired[FAULTS_MAX] = {false};
        uint32_t stage = f->stage == FAULT_STAGE_ALL ? 0 : f->stage;
        fault_at anywhere = f->kind == FAULT_OOM ? FAULT_AT_LOAD : FAULT_AT_DECODE;
        fault_at at = f->at == FAULT_AT_ANY ? anywhere : f->at;
        const fault *hit = fault_match(l, fired, stage, at, f->step);
        CHECK(hit != NULL && hit <= f);
    }
}

static void check_doors(const doors *d, const door_values *v)
{
    CHECK(d->n_stages >= 1 && d->n_stages <= STAGES_MAX && d->stages_set == (d->n_stages > 1));
    CHECK(d->n_cuts == (d->splits == SPLITS_LIST ? d->n_stages - 1 : 0));
    for (uint32_t i = 0; i < d->n_cuts; i++)
        CHECK(d->cut[i] > (i > 0 ? d->cut[i - 1] : 0));
    CHECK(d->n_devices == 0 || d->n_devices == d->n_stages ||
          (d->n_devices == 1 && d->device[0].kind == DEVICE_AUTO));
    CHECK(d->transport <= TRANSPORT_SHM && d->signal <= SIGNAL_SPIN);
    CHECK(d->streams || (d->transport == TRANSPORT_AUTO && d->signal == SIGNAL_AUTO));
    const char *fault_text = v->value[DOOR_FAULT];
    CHECK(strcmp(d->fault_text, fault_text != NULL ? fault_text : "") == 0);
    check_faults(&d->faults);
}

/* One line per door, in the table's order; the first byte of each says whether it came from a flag.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char text[4096];
    if (n >= sizeof text) n = sizeof text - 1;
    memcpy(text, data, n);
    text[n] = '\0';

    fault_list faults;
    errmsg e = {0};
    if (fault_parse(&faults, text, &e) == ST_OK) {
        check_faults(&faults);
    } else {
        check_line(&e);
        CHECK(faults.n == 0);
    }

    door_values v = {0};
    char *line = text;
    for (uint32_t id = 0; id < DOOR_COUNT && line != NULL; id++) {
        char *next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        v.from_flag[id] = *line == '-';
        v.value[id] = *line == '-' ? line + 1 : line;
        line = next;
    }
    doors d;
    e = (errmsg){0};
    if (doors_parse(&d, &v, &e) == ST_OK) {
        check_doors(&d, &v);
    } else {
        check_line(&e);
        CHECK(d.n_stages == 1 && d.n_cuts == 0 && d.n_devices == 0 && d.faults.n == 0);
    }
    return 0;
}
