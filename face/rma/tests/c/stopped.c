/* Rank 1 is stopped (SIGSTOP) while it has the lock of rank 0. It keeps it, however long that takes: rank 2, which waits for it,
 * comes in when rank 1 goes on and gives it back, and finds all that rank 1 did under it.
 *
 * usage: ropewalk run -n 3 -- stopped IMPLEMENTATION */
#include "check.h"
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* Numbers of rank 0: the process of rank 1; what that puts before and after its stop; what rank 2 puts. */
enum { PROCESS, BEFORE, AFTER, WAITER, NUMBERS };

/* Longer than any patience of ours with a peer that says nothing over shared memory. */
static const double STOPPED_S = 3;

static rw_win win;

static double now_s(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void put(int at, int64_t value)
{
    OK(rw_put(&value, 1, RW_INT64, 0, at, 1, RW_INT64, win));
    OK(rw_win_flush(0, win));
}

static int is_stopped(int64_t process)
{
    char path[64], line[512], *state;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)process);
    file = fopen(path, "r");
    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL && fclose(file) == 0);
    state = strrchr(line, ')');
    return state != NULL && state[2] == 'T';
}

static void holds(void)
{
    OK(rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win));
    put(BEFORE, 1);
    put(PROCESS, getpid());
    CHECK(raise(SIGSTOP) == 0);
    put(AFTER, 1);
    OK(rw_win_unlock(0, win));
}

static void waits(void)
{
    int64_t seen[NUMBERS] = {0};
    while (seen[PROCESS] == 0) {
        OK(rw_win_lock(RW_LOCK_SHARED, 0, RW_MODE_NOCHECK, win));
        OK(rw_get(seen, NUMBERS, RW_INT64, 0, 0, NUMBERS, RW_INT64, win));
        OK(rw_win_unlock(0, win));
    }
    OK(rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win));
    OK(rw_get(seen, NUMBERS, RW_INT64, 0, 0, NUMBERS, RW_INT64, win));
    OK(rw_win_flush(0, win));
    put(WAITER, 1);
    OK(rw_win_unlock(0, win));
    CHECK(seen[BEFORE] == 1 && seen[AFTER] == 1 && seen[WAITER] == 0);
}

static void looks(volatile int64_t *base)
{
    double begin;
    while (base[PROCESS] == 0 || !is_stopped(base[PROCESS]))
        OK(rw_win_sync(win));
    for (begin = now_s(); now_s() - begin < STOPPED_S; usleep(1000)) {
        OK(rw_win_sync(win));
        CHECK(base[BEFORE] == 1 && base[AFTER] == 0 && base[WAITER] == 0);
    }
    CHECK(kill((pid_t)base[PROCESS], SIGCONT) == 0);
}

int main(int argc, char **argv)
{
    char info[100];
    int rank;
    int64_t *base;
    CHECK(argc == 2);
    OK(rw_init());
    OK(rw_rank(&rank));
    snprintf(info, sizeof info, "implementation=%s;name=stopped", argv[1]);
    OK(rw_win_allocate(NUMBERS * sizeof *base, sizeof *base, info, &base, &win));
    if (rank == 0)
        looks(base);
    else if (rank == 1)
        holds();
    else
        waits();
    OK(rw_barrier());
    CHECK(rank != 0 || (base[AFTER] == 1 && base[WAITER] == 1));
    OK(rw_win_free(&win));
    OK(rw_finalize());
    puts("ok");
    return 0;
}
