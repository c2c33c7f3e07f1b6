/* amount.h - how amounts are said to a person: times in seconds, bytes in powers of 1000, each with
 * its unit, and the s of a plural. A sentence takes the unit that fits each value; a table has
 * megabytes in all its cells, so that they can be compared. Texts for programs (JSON, CSV) have
 * whole bytes instead. */
#ifndef COMMON_AMOUNT_H
#define COMMON_AMOUNT_H

#include <stdint.h>

#define AMOUNT_TEXT 32

/* "812 bytes", "37.4 kB", "1.3 MB", "19.30 GB". Returns out. */
const char *amount_bytes(char out[AMOUNT_TEXT], uint64_t bytes);

/* "19300.0 MB", "0.0 MB": a table's cell. Returns out. */
const char *amount_mb(char out[AMOUNT_TEXT], uint64_t bytes);

/* "45.2 s", "0.45 s", "0.010 s": a millisecond is not none. Returns out. */
const char *amount_seconds(char out[AMOUNT_TEXT], uint64_t ns);

/* amount_bytes as an argument of a format; lives as long as the block that it stands in. */
#define amount_said(bytes) amount_bytes((char[AMOUNT_TEXT]){0}, (bytes))
#define amount_lasted(ns)  amount_seconds((char[AMOUNT_TEXT]){0}, (ns))

/* What follows a noun that is counted: "" of 1, else "s". */
static inline const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
