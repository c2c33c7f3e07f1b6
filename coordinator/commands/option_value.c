#include "common/doortext.h"
#include "coordinator/commands/options_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

status option_refuse(const option_given *g, const char *why, const char *rule)
{
    char quoted[DOORTEXT_QUOTE_BYTES];
    return errmsg_set(g->e, ST_USAGE, "%s=%s %s; rule: %s", g->name,
                      doortext_quote(quoted, g->value, strlen(g->value)), why, rule);
}

/* The rule of a number in words: its kind and, if it has one, its range. */
static const char *number_rule(char *out, size_t bytes, const option *o)
{
    const char *kind = o->type >= OPTION_F32 ? "a decimal number" : "a whole decimal number";
    if (o->min == 0 && o->max == 0) {
        snprintf(out, bytes, "%s", kind);
    } else if (o->max >= 9e15) {
        snprintf(out, bytes, "%s, %.10g or more", kind, o->min);
    } else if (o->type == OPTION_F32_OVER) {
        snprintf(out, bytes, "%s over %.10g, at most %.10g", kind, o->min, o->max);
    } else if (o->type == OPTION_F32_UNDER) {
        snprintf(out, bytes, "%s from %.10g, under %.10g", kind, o->min, o->max);
    } else {
        snprintf(out, bytes, "%s from %.10g to %.10g", kind, o->min, o->max);
    }
    return out;
}

static bool in_range(const option *o, double value)
{
    if (o->min == 0 && o->max == 0) return true;
    if (o->type == OPTION_F32_OVER && value <= o->min) return false;
    if (o->type == OPTION_F32_UNDER && value >= o->max) return false;
    return value >= o->min && value <= o->max;
}

static status take_integer(const option_given *g)
{
    const option *o = g->o;
    char rule[96];
    number_rule(rule, sizeof rule, o);
    bool negative = o->type == OPTION_I64 && g->value[0] == '-';
    const char *digits = g->value + negative;
    uint64_t max = o->type == OPTION_U32   ? UINT32_MAX
                   : o->type == OPTION_I64 ? INT64_MAX
                                           : UINT64_MAX;
    uint64_t value = 0;
    number_result r = doortext_number(digits, strlen(digits), max, &value);
    if (r == NUMBER_NOT_DIGITS)
        return option_refuse(g, "is not a whole number in decimal digits", rule);
    if (r == NUMBER_TOO_BIG) return option_refuse(g, "is too big", rule);
    if (!in_range(o, negative ? -(double)value : (double)value)) {
        return option_refuse(g, "is out of range", rule);
    }
    if (o->type == OPTION_U32)
        *(uint32_t *)o->out = (uint32_t)value;
    else if (o->type == OPTION_U64)
        *(uint64_t *)o->out = value;
    else
        *(int64_t *)o->out = negative ? -(int64_t)value : (int64_t)value;
    return ST_OK;
}

static size_t skip_digits(const char **at)
{
    size_t n = strspn(*at, "0123456789");
    *at += n;
    return n;
}

/* strtof reads more than a person means (hex, inf, spaces), so the form is checked first. */
static bool decimal_form(const char *s)
{
    if (*s == '-') s++;
    size_t n = skip_digits(&s);
    if (*s == '.') {
        s++;
        n += skip_digits(&s);
    }
    if (n == 0) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '-' || *s == '+') s++;
        if (skip_digits(&s) == 0) return false;
    }
    return *s == '\0';
}

static status take_float(const option_given *g)
{
    char rule[96];
    number_rule(rule, sizeof rule, g->o);
    if (!decimal_form(g->value)) return option_refuse(g, "is not a decimal number", rule);
    float value = strtof(g->value, NULL);
    if (!isfinite(value)) return option_refuse(g, "is too big", rule);
    if (!in_range(g->o, (double)value)) return option_refuse(g, "is out of range", rule);
    *(float *)g->o->out = value;
    return ST_OK;
}

/* Options that name a file or folder must name one. */
static status take_text(const option_given *g)
{
    const char *argument = g->o->argument;
    bool names = argument != NULL && (strcmp(argument, "FILE") == 0 || strcmp(argument, "DIR") == 0);
    if (names && g->value[0] == '\0')
        return errmsg_set(g->e, ST_USAGE, "%s needs a name, it is empty", g->name);
    *(const char **)g->o->out = g->value;
    return ST_OK;
}

status option_take(const option_given *g)
{
    switch (g->o->type) {
    case OPTION_FLAG:
        *(bool *)g->o->out = true;
        return ST_OK;
    case OPTION_TEXT:
        return take_text(g);
    case OPTION_F32:
    case OPTION_F32_OVER:
    case OPTION_F32_UNDER:
        return take_float(g);
    default:
        return take_integer(g);
    }
}
