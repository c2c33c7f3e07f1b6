/* The thread pool: every part runs once, its writes are seen, it sleeps when idle. */
#include "common/clock.h"
#include "kernels/cpu/pool.h"
#include "tests/support/tap.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

typedef struct {
    uint32_t count[16];
    uint32_t n_parts_seen[16];
    pthread_t who[16];
} parts;

static void count_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    parts *p = arg;
    p->count[part_i]++; /* plain: the pool orders it against the caller */
    p->n_parts_seen[part_i] = n_parts;
    p->who[part_i] = pthread_self();
}

static void every_part_runs_once(void **state)
{
    (void)state;
    errmsg e = {0};
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
        pool *p;
        assert_int_equal(pool_open(&p, n_threads, NULL, NULL, &e), ST_OK);
        assert_int_equal(pool_n_threads(p), n_threads);
        parts seen = {0};
        pthread_t first_run[16];
        uint32_t want[16] = {0};
        for (uint32_t round = 0; round < 3000; round++) {
            uint32_t n_parts = 1 + round % n_threads;
            pool_run(p, count_part, &seen, n_parts);
            for (uint32_t i = 0; i < n_parts; i++) {
                assert_int_equal(seen.count[i], ++want[i]);
                assert_int_equal(seen.n_parts_seen[i], n_parts);
                /* Thread i runs part i, always the same one; part 0 is the caller. */
                if (want[i] == 1) first_run[i] = seen.who[i];
                assert_true(pthread_equal(first_run[i], seen.who[i]));
            }
            assert_true(pthread_equal(seen.who[0], pthread_self()));
        }
        pool_close(p);
    }
    pool_close(NULL);
}

static uint64_t process_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Idle for 200 ms must cost next to nothing, and the sleepers must wake again. */
static void idle_threads_sleep(void **state)
{
    (void)state;
    errmsg e = {0};
    pool *p;
    assert_int_equal(pool_open(&p, 4, NULL, NULL, &e), ST_OK);
    parts seen = {0};
    for (uint32_t round = 1; round <= 3; round++) {
        pool_run(p, count_part, &seen, 4);
        uint64_t start = process_cpu_ns();
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
        assert_true(process_cpu_ns() - start < 20 * NS_PER_MS);
        for (uint32_t i = 0; i < 4; i++) assert_int_equal(seen.count[i], round);
    }
    pool_close(p);
}

static void count_start(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

static void nothing(void *arg, uint32_t part_i, uint32_t n_parts)
{
    (void)arg, (void)part_i, (void)n_parts;
}

static void start_runs_on_each_new_thread(void **state)
{
    (void)state;
    errmsg e = {0};
    pool *p;
    atomic_uint n = 0;
    assert_int_equal(pool_open(&p, 4, count_start, &n, &e), ST_OK);
    pool_run(p, nothing, NULL, 4);
    assert_int_equal(atomic_load(&n), 3);
    pool_close(p);
}

/* Threads of this process whose name begins with "memra-cpu-". */
static uint32_t named_threads(void)
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *t; (t = readdir(d)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", t->d_name);
        FILE *f = fopen(path, "re");
        if (f == NULL) continue;
        if (fgets(name, sizeof name, f) != NULL && strncmp(name, "memra-cpu-", 10) == 0) n++;
        fclose(f);
    }
    closedir(d);
    return n;
}

static void threads_have_names_and_end(void **state)
{
    (void)state;
    errmsg e = {0};
    pool *p;
    assert_int_equal(pool_open(&p, 3, NULL, NULL, &e), ST_OK);
    assert_int_equal(named_threads(), 2);
    pool_close(p);
    assert_int_equal(named_threads(), 0);
}

static void bad_counts_are_refused(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, POOL_THREADS_MAX + 1, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        errmsg e = {0};
        pool *p = (pool *)&e;
        assert_int_equal(pool_open(&p, bad[i], NULL, NULL, &e), ST_RESOURCES);
        assert_null(p);
        assert_non_null(strstr(e.text, "threads"));
    }
}

static void ranges_cover_everything_once(void **state)
{
    (void)state;
    static const uint64_t ns[] = {0, 1, 15, 16, 17, 100, 4096, 1ull << 33};
    for (int i = 0; i < 8; i++) {
        for (uint32_t n_parts = 1; n_parts <= 7; n_parts++) {
            uint64_t at = 0;
            for (uint32_t part = 0; part < n_parts; part++) {
                uint64_t begin, end;
                pool_range(ns[i], 16, part, n_parts, &begin, &end);
                assert_true(begin == at && end >= begin && end <= ns[i]);
                assert_true(begin % 16 == 0 || begin == ns[i]);
                at = end;
            }
            assert_true(at == ns[i]);
        }
    }
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_once),
        cmocka_unit_test(idle_threads_sleep),
        cmocka_unit_test(start_runs_on_each_new_thread),
        cmocka_unit_test(threads_have_names_and_end),
        cmocka_unit_test(bad_counts_are_refused),
        cmocka_unit_test(ranges_cover_everything_once),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
