/* Threads that use one window at once: their updates all count, and each has its own words of errors. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200 };

static rw_win win;

static void *work(void *number)
{
    const int64_t one = 1, own = (int64_t)(intptr_t)number;
    int64_t found = 0, last = -1;
    int round;
    for (round = 0; round < ROUNDS; round++) {
        OK(rw_fetch_and_op(&one, &found, RW_INT64, 0, 0, RW_SUM, win));
        OK(rw_win_flush(0, win));
        CHECK(found > last);
        last = found;
        OK(rw_put(&own, 1, RW_INT64, 0, own, 1, RW_INT64, win));
        FAILS(rw_put(&one, -own, RW_INT64, 0, 0, 1, RW_INT64, win), RW_ERR_COUNT, "a count of -");
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int64_t *base;
    int at;
    OK(rw_init());
    OK(rw_win_allocate((THREADS + 1) * sizeof *base, sizeof *base, NULL, &base, &win));
    OK(rw_win_lock_all(0, win));
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, work, (void *)(intptr_t)(at + 1)) == 0);
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    OK(rw_win_unlock_all(win));
    CHECK(base[0] == THREADS * ROUNDS);
    for (at = 1; at <= THREADS; at++)
        CHECK(base[at] == at);
    OK(rw_win_free(&win));
    OK(rw_finalize());
    puts("ok");
    return 0;
}
