/* Rank 1 is killed in the middle of something: SIGKILL, at a moment that nobody chose. Nobody hangs, those who deal with it are
 * told its number, and the others go on with each other.
 *
 * usage: ropewalk run -n 4 -- killed IMPLEMENTATION target|origin|accumulate|fence|locked|copying|dynamic SEED
 *
 * Each rank is a child of the process that was started, which ends well when its child did what it should. */
#include "check.h"
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

enum { NUMBERS = 1000, LONG = 20000, HUGE_LONG = 4 << 20 };

static int rank, size, tell;
static rw_win win;
static int64_t *base, *huge, data[LONG];
static const char *what;
static rw_aint at;

static int is(const char *word)
{
    return strcmp(what, word) == 0;
}

/* One turn of what goes on until somebody dies. */
static int turn(void)
{
    int to = rank == 1 ? 0 : 1, code = RW_SUCCESS, locked = RW_SUCCESS;
    if (is("copying")) {
        if ((code = rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win)) != RW_SUCCESS)
            return code;
        code = rw_put(huge, HUGE_LONG, RW_INT64, 0, 0, HUGE_LONG, RW_INT64, win);
        huge[0]++;
        huge[HUGE_LONG - 1]++;
        return code == RW_SUCCESS ? rw_win_unlock(0, win) : code;
    }
    if (is("locked")) {
        locked = rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win);
        /* A lock of rank 0's own memory tells of a dead holder at once, and is there all the same. */
        if (locked != RW_SUCCESS && !(rank == 0 && locked == RW_ERR_OWNER_DIED))
            return locked;
    }
    if (is("accumulate"))
        code = rw_accumulate(data, NUMBERS, RW_INT64, rank == 1 ? 0 : 1, at, NUMBERS, RW_INT64, RW_SUM, win);
    else if (is("locked"))
        code = rw_put(data, NUMBERS, RW_INT64, 0, 0, NUMBERS, RW_INT64, win);
    else if (is("target") && rank == 1)
        return rw_win_sync(win);
    else
        code = rw_put(data, LONG, RW_INT64, to, at, LONG, RW_INT64, win);
    if (is("locked")) {
        int unlocked = rw_win_unlock(0, win);
        if (locked != RW_SUCCESS)
            OK(unlocked);
        return code != RW_SUCCESS ? code : locked != RW_SUCCESS ? locked : unlocked;
    }
    return code == RW_SUCCESS ? rw_win_flush(to, win) : code;
}

static void names_it(int code)
{
    CHECK(code == RW_ERR_PEER && strstr(rw_last_error(), "(killed): rank 1 ") != NULL);
}

static int64_t sum(void)
{
    int64_t all = 0;
    int number;
    for (number = 0; number < HUGE_LONG; number++)
        all += base[number] * (number + 1);
    return all;
}

/* Whether rank 1 answers. */
static int lives(void)
{
    int64_t seen;
    int code;
    if (rw_win_lock(RW_LOCK_SHARED, 1, 0, win) != RW_SUCCESS)
        return 0;
    code = rw_get(&seen, 1, RW_INT64, 1, 0, 1, RW_INT64, win);
    return rw_win_unlock(1, win) == RW_SUCCESS && code == RW_SUCCESS;
}

/* Rank 1 dies while it copies into our memory, with our lock. Whoever has the lock after it finds memory that nobody changes. */
static void still(void)
{
    int code = RW_SUCCESS;
    while (rank == 0 && code == RW_SUCCESS && lives()) {
        int64_t before;
        code = rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win);
        CHECK(code == RW_SUCCESS || code == RW_ERR_OWNER_DIED);
        before = sum();
        usleep(10000);
        CHECK(sum() == before);
        OK(rw_win_unlock(0, win));
    }
}

/* Rank 1 dies within a fence, in which the last rank is missing. */
static void fence(rw_win other)
{
    int64_t seen;
    int code = RW_SUCCESS;
    while (rank == size - 1 && code == RW_SUCCESS) {
        OK(rw_win_lock(RW_LOCK_SHARED, 1, 0, other));
        code = rw_get(&seen, 1, RW_INT64, 1, 0, 1, RW_INT64, other);
        if (code == RW_SUCCESS)
            code = rw_win_unlock(1, other);
        else
            CHECK(rw_win_unlock(1, other) == RW_ERR_PEER);
    }
    code = rw_win_fence(0, win);
    /* It may have done its part before. */
    if (code != RW_SUCCESS)
        names_it(code);
}

/* The others go on: each counts at the next one that lives. */
static void go_on(rw_win other, const int64_t *counter)
{
    int64_t one = 1, seen = -1;
    int next = rank == size - 1 ? 0 : rank == 0 ? 2 : rank + 1;
    OK(rw_win_lock(RW_LOCK_EXCLUSIVE, next, 0, other));
    OK(rw_fetch_and_op(&one, &seen, RW_INT64, next, 0, RW_SUM, other));
    OK(rw_win_unlock(next, other));
    CHECK(seen == 0);
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) == 0)
        OK(rw_win_sync(other));
}

static void child(const char *implementation)
{
    char info[128];
    int number, code;
    int64_t *counter;
    rw_win other;
    OK(rw_init());
    OK(rw_rank(&rank));
    OK(rw_size(&size));
    snprintf(info, sizeof info, "implementation=%s;name=killed", implementation);
    if (is("dynamic")) {
        rw_aint all[64], own;
        OK(rw_win_create_dynamic(info, &win));
        base = (int64_t *)calloc(LONG, sizeof *base);
        CHECK(base != NULL && size <= 64);
        OK(rw_win_attach(win, base, LONG * sizeof *base));
        OK(rw_get_address(base, &own));
        OK(rw_allgather(&own, sizeof own, all));
        at = all[rank == 1 ? 0 : 1];
    } else if (is("copying")) {
        /* Memory that others cannot map. */
        base = (int64_t *)calloc(HUGE_LONG, sizeof *base);
        huge = (int64_t *)calloc(HUGE_LONG, sizeof *huge);
        CHECK(base != NULL && huge != NULL);
        OK(rw_win_create(base, HUGE_LONG * sizeof *base, sizeof *base, info, &win));
    } else {
        OK(rw_win_allocate(LONG * sizeof *base, sizeof *base, info, &base, &win));
    }
    OK(rw_win_allocate(sizeof *counter, sizeof *counter, info, &counter, &other));
    for (number = 0; number < LONG; number++)
        data[number] = 1;
    OK(rw_barrier());
    if (!is("fence") && !is("locked") && !is("copying")) {
        /* Rank 1 may be gone by now, which had this lock, too. */
        code = rw_win_lock_all(0, win);
        CHECK(code == RW_SUCCESS || (rank != 1 && code == RW_ERR_OWNER_DIED));
    }
    if (is("fence"))
        OK(rw_win_fence(0, win));
    if (rank == 1 && !is("fence"))
        OK(turn());
    /* Now it may be killed. */
    CHECK(write(tell, "x", 1) == 1);
    if (is("locked") && rank != 1) {
        /* Whoever gets the lock after the dead is told so, or found it in good order. */
        int deaths = 0;
        for (number = 0; deaths == 0; number++) {
            code = turn();
            if (code == RW_ERR_OWNER_DIED)
                deaths = 1;
            else
                CHECK(code == RW_SUCCESS);
            if (rw_win_lock(RW_LOCK_SHARED, 1, 0, win) != RW_SUCCESS)
                break;
            code = rw_get(data, 1, RW_INT64, 1, 0, 1, RW_INT64, win);
            if (code == RW_SUCCESS)
                code = rw_win_unlock(1, win);
            else
                CHECK(rw_win_unlock(1, win) != RW_SUCCESS);
            if (code != RW_SUCCESS) {
                names_it(code);
                break;
            }
            data[0] = 1;
        }
        /* It is free again. */
        code = turn();
        CHECK(code == RW_SUCCESS || code == RW_ERR_OWNER_DIED);
        OK(turn());
    } else if (is("fence")) {
        fence(other);
    } else if (is("copying") && rank != 1) {
        still();
    } else {
        while ((code = turn()) == RW_SUCCESS)
            ;
        if (is("accumulate") && rank == 0)
            for (number = 1; number < NUMBERS; number++)
                CHECK(base[number - 1] - base[number] == 0 || base[number - 1] - base[number] == 1);
        names_it(code);
    }
    go_on(other, counter);
    if (is("dynamic")) {
        OK(rw_win_detach(win, base));
        free(base);
    }
    FAILS(rw_barrier(), RW_ERR_PEER, "rank 1");
    FAILS(rw_finalize(), RW_ERR_PEER, "rank 1");
    puts("ok");
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    int ends[2], status, victim, seed;
    char byte;
    pid_t of;
    CHECK(argc == 4);
    what = argv[2];
    seed = atoi(argv[3]);
    victim = getenv("ROPEWALK_RANK") != NULL && strcmp(getenv("ROPEWALK_RANK"), "1") == 0;
    CHECK(pipe(ends) == 0);
    of = fork();
    CHECK(of >= 0);
    if (of == 0) {
        close(ends[0]);
        tell = ends[1];
        /* Nothing here takes so long, but a hang. */
        alarm(120);
        child(argv[1]);
    }
    close(ends[1]);
    if (victim && read(ends[0], &byte, 1) == 1) {
        usleep(seed * 7919 % 20000);
        CHECK(kill(of, SIGKILL) == 0);
    }
    while (waitpid(of, &status, 0) < 0)
        CHECK(errno == EINTR);
    if (victim)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
