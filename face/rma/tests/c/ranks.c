/* Several ranks, by the implementation that the argument names: operations between them in every kind of epoch, over memory
 * of the library and of the program, and what one rank does wrong is told where it has to be.
 *
 * usage: ropewalk run -n 4 -- ranks IMPLEMENTATION shared|apart */
#include "check.h"

static int rank, size, right, left;
static char info[128];

static void rings(void)
{
    enum { NUMBERS = 5000 };
    int *mine, *base, to, from, at;
    rw_win win;
    mine = (int *)malloc(2 * NUMBERS * sizeof *mine);
    CHECK(mine != NULL);
    for (at = 0; at < NUMBERS; at++) {
        mine[at] = rank * NUMBERS + at;
        mine[NUMBERS + at] = -1;
    }
    /* Every rank has another displacement unit. */
    OK(rw_win_create(mine, 2 * NUMBERS * sizeof *mine, rank % 2 == 0 ? 4 : 1, info, &win));
    OK(rw_win_get_base(win, &base));
    CHECK(base == mine);
    to = right;
    from = left;
    OK(rw_win_post(1, &from, 0, win));
    OK(rw_win_start(1, &to, 0, win));
    OK(rw_put(mine, NUMBERS, RW_INT, to, right % 2 == 0 ? NUMBERS : 4 * NUMBERS, NUMBERS, RW_INT, win));
    OK(rw_win_complete(win));
    OK(rw_win_wait(win));
    for (at = 0; at < NUMBERS; at++)
        CHECK(mine[NUMBERS + at] == left * NUMBERS + at);
    OK(rw_win_fence(RW_MODE_NOPRECEDE, win));
    OK(rw_get(mine + NUMBERS, NUMBERS, RW_INT, to, 0, NUMBERS, RW_INT, win));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
    for (at = 0; at < NUMBERS; at++)
        CHECK(mine[NUMBERS + at] == right * NUMBERS + at);
    OK(rw_win_free(&win));
    free(mine);
}

/* Everybody tells everybody, by the group of the window. */
static void groups(void)
{
    enum { MOST = 64 };
    int ranks[MOST], count = 0, at;
    int64_t *base, own = rank + 1;
    rw_win win;
    OK(rw_win_allocate(size * sizeof *base, sizeof *base, info, &base, &win));
    OK(rw_win_get_group(win, MOST, ranks, &count));
    CHECK(count == size);
    for (at = 0; at < size; at++)
        CHECK(ranks[at] == at);
    OK(rw_win_post(count, ranks, 0, win));
    OK(rw_win_start(count, ranks, 0, win));
    for (at = 0; at < size; at++)
        OK(rw_put(&own, 1, RW_INT64, ranks[at], rank, 1, RW_INT64, win));
    OK(rw_win_complete(win));
    OK(rw_win_wait(win));
    for (at = 0; at < size; at++)
        CHECK(base[at] == at + 1);
    OK(rw_win_free(&win));
}

/* A matrix that lies by rows here is put by columns there. */
static void transposed(void)
{
    double matrix[6][5], *base;
    int row, column;
    rw_type column_type, whole;
    rw_win win;
    for (row = 0; row < 6; row++)
        for (column = 0; column < 5; column++)
            matrix[row][column] = 100 * rank + 10 * row + column;
    OK(rw_win_allocate(30 * sizeof *base, sizeof *base, info, &base, &win));
    OK(rw_type_vector(6, 1, 5, RW_DOUBLE, &column_type));
    OK(rw_type_create_resized(column_type, 0, sizeof(double), &whole));
    OK(rw_type_free(&column_type));
    OK(rw_win_fence(0, win));
    OK(rw_put(matrix, 5, whole, right, 0, 30, RW_DOUBLE, win));
    OK(rw_win_fence(0, win));
    OK(rw_type_free(&whole));
    for (column = 0; column < 5; column++)
        for (row = 0; row < 6; row++)
            CHECK(base[6 * column + row] == 100 * left + 10 * row + column);
    OK(rw_win_free(&win));
}

/* All ranks change a number at rank 0, which is read and written under the lock. */
static void locks(void)
{
    enum { ROUNDS = 25 };
    int64_t *base, number;
    int round;
    rw_win win;
    OK(rw_win_allocate(sizeof *base, sizeof *base, info, &base, &win));
    for (round = 0; round < ROUNDS; round++) {
        OK(rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win));
        OK(rw_get(&number, 1, RW_INT64, 0, 0, 1, RW_INT64, win));
        OK(rw_win_flush(0, win));
        number++;
        OK(rw_put(&number, 1, RW_INT64, 0, 0, 1, RW_INT64, win));
        OK(rw_win_unlock(0, win));
    }
    OK(rw_barrier());
    OK(rw_win_lock(RW_LOCK_SHARED, 0, 0, win));
    OK(rw_get(&number, 1, RW_INT64, 0, 0, 1, RW_INT64, win));
    OK(rw_win_unlock(0, win));
    CHECK(number == (int64_t)size * ROUNDS);
    OK(rw_win_free(&win));
}

static void accumulates(void)
{
    enum { NUMBERS = 300 };
    double *base, out[NUMBERS], before[NUMBERS];
    rw_request requests[8];
    int at, to;
    rw_win win;
    CHECK(size <= 8);
    OK(rw_win_allocate(NUMBERS * sizeof *base, sizeof *base, info, &base, &win));
    for (at = 0; at < NUMBERS; at++)
        out[at] = at * (rank + 1);
    OK(rw_win_lock_all(0, win));
    for (to = 0; to < size; to++)
        OK(rw_raccumulate(out, NUMBERS, RW_DOUBLE, to, 0, NUMBERS, RW_DOUBLE, RW_SUM, win, &requests[to]));
    OK(rw_waitall(size, requests));
    OK(rw_win_flush_all(win));
    OK(rw_barrier());
    OK(rw_get_accumulate(NULL, 0, RW_DOUBLE, before, NUMBERS, RW_DOUBLE, right, 0, NUMBERS, RW_DOUBLE, RW_NO_OP, win));
    OK(rw_win_flush_local(right, win));
    for (at = 0; at < NUMBERS; at++)
        CHECK(before[at] == at * (size * (size + 1) / 2.0));
    OK(rw_win_unlock_all(win));
    OK(rw_win_free(&win));
}

/* The memory of long data is the program's again when the operation is complete at the origin. */
static void reused(void)
{
    enum { BYTES = 600000 };
    unsigned char *base, *out = (unsigned char *)malloc(BYTES);
    int round, at;
    rw_request request;
    rw_win win;
    CHECK(out != NULL);
    OK(rw_win_allocate(2 * BYTES, 1, info, &base, &win));
    OK(rw_win_lock_all(0, win));
    for (round = 0; round < 2; round++) {
        for (at = 0; at < BYTES; at++)
            out[at] = (unsigned char)(at * 31 + rank + round);
        if (round == 0) {
            OK(rw_put(out, BYTES, RW_BYTE, right, 0, BYTES, RW_BYTE, win));
            OK(rw_win_flush_local(right, win));
        } else {
            OK(rw_rput(out, BYTES, RW_BYTE, right, BYTES, BYTES, RW_BYTE, win, &request));
            OK(rw_wait(&request));
        }
        memset(out, 0xee, BYTES);
    }
    OK(rw_win_unlock_all(win));
    OK(rw_barrier());
    OK(rw_win_sync(win));
    for (round = 0; round < 2; round++)
        for (at = 0; at < BYTES; at++)
            CHECK(base[round * BYTES + at] == (unsigned char)(at * 31 + left + round));
    OK(rw_win_free(&win));
    free(out);
}

/* Two windows over the same memory: each has its own epochs. */
static void twice(void)
{
    int64_t memory[4] = {0, 0, 0, 0}, number = rank + 1, seen = 0;
    rw_win one, two;
    OK(rw_win_create(memory, sizeof memory, sizeof *memory, info, &one));
    OK(rw_win_create(memory, sizeof memory, sizeof *memory, info, &two));
    CHECK(one != two);
    OK(rw_win_lock_all(0, one));
    OK(rw_win_fence(0, two));
    OK(rw_accumulate(&number, 1, RW_INT64, right, 1, 1, RW_INT64, RW_SUM, one));
    /* Each window has a lock word of its own there, and MPI promises nothing for accumulates through both at a time. */
    if (strstr(info, "direct_accumulate_at_origin") != NULL)
        OK(rw_win_flush(right, one));
    OK(rw_accumulate(&number, 1, RW_INT64, right, 1, 1, RW_INT64, RW_SUM, two));
    OK(rw_win_flush(right, one));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, two));
    CHECK(memory[1] == 2 * (left + 1));
    OK(rw_get(&seen, 1, RW_INT64, right, 1, 1, RW_INT64, one));
    OK(rw_win_unlock_all(one));
    CHECK(seen == 2 * number);
    OK(rw_win_free(&one));
    OK(rw_win_free(&two));
}

/* Memory that all ranks load and store, where they share any. */
static void shared(int is_shared)
{
    int64_t *base = NULL, *first, *other, value;
    rw_aint bytes;
    int unit, at, code;
    rw_win win = RW_WIN_NULL;
    code = rw_win_allocate_shared((rank + 1) * sizeof *base, sizeof *base, info, &base, &win);
    if (!is_shared) {
        CHECK(code == RW_ERR_RMA_SHARED && win == RW_WIN_NULL && base == NULL);
        return;
    }
    CHECK(code == RW_SUCCESS);
    OK(rw_win_shared_query(win, RW_PROC_NULL, NULL, NULL, &first));
    for (at = 0; at < size; at++) {
        OK(rw_win_shared_query(win, at, &bytes, &unit, &other));
        CHECK(bytes == (rw_aint)((at + 1) * sizeof *base) && unit == sizeof *base);
        CHECK(other == first + at * (at + 1) / 2);
        CHECK(at != rank || other == base);
    }
    OK(rw_win_lock_all(0, win));
    OK(rw_win_shared_query(win, right, NULL, NULL, &other));
    other[right] = 100 + rank;
    OK(rw_win_sync(win));
    OK(rw_barrier());
    OK(rw_win_sync(win));
    CHECK(base[rank] == 100 + left);
    OK(rw_win_unlock_all(win));
    /* A plain addition under a lock, which is taken when the call returns. */
    OK(rw_barrier());
    for (at = 0; at < 200; at++) {
        OK(rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win));
        value = *(volatile int64_t *)first;
        *(volatile int64_t *)first = value + 1;
        OK(rw_win_unlock(0, win));
    }
    OK(rw_barrier());
    CHECK(*first == 100 + size - 1 + 200 * size);
    FAILS(rw_win_shared_query(win, size, &bytes, &unit, &other), RW_ERR_RANK, "no rank");
    OK(rw_win_free(&win));
}

/* Puts tell of themselves: a token goes around, with data that are there when it comes. */
static void notices(void)
{
    enum { ROUNDS = 100, NUMBERS = 600 };
    char all[160];
    int *base, mine[NUMBERS], round, at;
    rw_count count = -1;
    rw_win win;
    snprintf(all, sizeof all, "%s;counters=2", info);
    OK(rw_win_allocate(NUMBERS * sizeof *base, sizeof *base, all, &base, &win));
    OK(rw_win_lock_all(0, win));
    for (round = 1; round <= ROUNDS; round++) {
        int many = round % 2 == 0 ? NUMBERS : 2;
        if (rank > 0 || round > 1) {
            /* Who begins a round waits for the end of the one before. */
            OK(rw_win_wait_notices(win, 1, rank == 0 ? round - 1 : round));
            for (at = 0; at < (rank == 0 ? (many == 2 ? NUMBERS : 2) : many); at++)
                CHECK(base[at] == (rank == 0 ? round - 1 : round) * 1000 + at);
        }
        for (at = 0; at < many; at++)
            mine[at] = round * 1000 + at;
        OK(rw_put_notify(mine, many, RW_INT, right, 0, many, RW_INT, 1, win));
        OK(rw_win_flush_local(right, win));
    }
    OK(rw_win_wait_notices(win, 1, ROUNDS));
    OK(rw_win_notices(win, 1, &count));
    CHECK(count == ROUNDS);
    OK(rw_win_notices(win, 0, &count));
    CHECK(count == 0);
    FAILS(rw_win_notices(win, 2, &count), RW_ERR_ARG, "counter 2");
    FAILS(rw_win_notices(win, -1, &count), RW_ERR_ARG, "counter -1");
    FAILS(rw_put_notify(mine, 1, RW_INT, right, 0, 1, RW_INT, 2, win), RW_ERR_ARG, "counter 2");
    OK(rw_barrier());
    OK(rw_win_unlock_all(win));
    OK(rw_win_free(&win));
}

/* Who finds the arguments of a collective call wrong says so, and nobody waits. */
static void disagreements(void)
{
    void *base = NULL;
    rw_win win = RW_WIN_NULL;
    int64_t own[2] = {rank, -rank}, all[2 * 8];
    int at, code;
    code = rw_win_allocate(rank == 1 ? -1 : 64, 8, info, &base, &win);
    CHECK(code == (rank == 1 ? RW_ERR_SIZE : RW_ERR_DISAGREE) && win == RW_WIN_NULL);
    code = rw_win_create(rank == 1 ? NULL : own, sizeof own, 8, info, &win);
    CHECK(code == (rank == 1 ? RW_ERR_ARG : RW_ERR_DISAGREE));
    code = rw_win_allocate(64, 8, rank == 0 ? "no_locks=true" : NULL, &base, &win);
    CHECK(code == RW_ERR_DISAGREE);
    code = rw_win_allocate_shared(rank == 1 ? -1 : 64, 8, info, &base, &win);
    CHECK(code == (rank == 1 ? RW_ERR_SIZE : RW_ERR_DISAGREE) && win == RW_WIN_NULL);
    code = rw_allgather(rank == 1 ? NULL : own, sizeof own, all);
    CHECK(code == (rank == 1 ? RW_ERR_ARG : RW_ERR_DISAGREE));
    OK(rw_allgather(own, sizeof own, all));
    for (at = 0; at < size; at++)
        CHECK(all[2 * at] == at && all[2 * at + 1] == -at);
}

/* Data whose types say where they are, at both sides. */
static void bottom(rw_win win)
{
    static int64_t here[8], there[8];
    rw_aint own[3], all[64][3], at[2], to[2];
    int number;
    rw_type mine, yours;
    for (number = 0; number < 8; number++) {
        here[number] = 10 * rank + number;
        there[number] = -1;
    }
    OK(rw_win_attach(win, there, sizeof there));
    OK(rw_get_address(&there[1], &own[0]));
    OK(rw_get_address(&there[6], &own[1]));
    CHECK(size <= 64);
    own[2] = 0;
    OK(rw_allgather(own, sizeof own, all));
    OK(rw_get_address(&here[5], &at[0]));
    OK(rw_get_address(&here[2], &at[1]));
    to[0] = all[right][0];
    to[1] = all[right][1];
    OK(rw_type_hindexed_block(2, 1, at, RW_INT64, &mine));
    OK(rw_type_hindexed_block(2, 1, to, RW_INT64, &yours));
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    OK(rw_put(RW_BOTTOM, 1, mine, right, 0, 1, yours, win));
    OK(rw_win_unlock(right, win));
    OK(rw_barrier());
    for (number = 0; number < 8; number++)
        CHECK(there[number] == (number == 1 ? 10 * left + 5 : number == 6 ? 10 * left + 2 : -1));
    OK(rw_barrier());
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    FAILS(rw_put(RW_BOTTOM, 1, RW_INT64, right, to[0], 1, RW_INT64, win), RW_ERR_ARG, "RW_BOTTOM needs");
    OK(rw_get(RW_BOTTOM, 1, mine, right, 0, 1, yours, win));
    OK(rw_win_unlock(right, win));
    CHECK(here[5] == 10 * rank + 5 && here[2] == 10 * rank + 2);
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    OK(rw_accumulate(RW_BOTTOM, 1, mine, right, 0, 1, yours, RW_SUM, win));
    OK(rw_win_unlock(right, win));
    OK(rw_barrier());
    CHECK(there[1] == 2 * (10 * left + 5) && there[6] == 2 * (10 * left + 2) && there[2] == -1);
    OK(rw_type_free(&mine));
    OK(rw_type_free(&yours));
    OK(rw_win_detach(win, there));
}

/* Memory that comes and goes; its addresses are told by a window of their own. */
static void dynamic(void)
{
    enum { LONG = 30000 };
    rw_aint *told, there;
    int64_t *list, *long_list, seen = 0, one = 1;
    void *base = &seen;
    int round, unit;
    rw_aint bytes;
    rw_win addresses, win;
    OK(rw_win_allocate(sizeof *told, sizeof *told, info, &told, &addresses));
    OK(rw_win_create_dynamic(info, &win));
    OK(rw_win_get_base(win, &base));
    OK(rw_win_get_size(win, right, &bytes, &unit));
    CHECK(base == NULL && bytes == 0 && unit == 1);
    long_list = (int64_t *)malloc(LONG * sizeof *long_list);
    CHECK(long_list != NULL);
    for (round = 0; round < 3; round++) {
        /* As often as not at the same address as before. */
        list = (int64_t *)calloc(LONG, sizeof *list);
        CHECK(list != NULL);
        OK(rw_win_attach(win, list, LONG * sizeof *list));
        OK(rw_get_address(list, told));
        CHECK(*told == (rw_aint)(intptr_t)list);
        OK(rw_win_fence(0, addresses));
        OK(rw_get(&there, 1, RW_AINT, right, 0, 1, RW_AINT, addresses));
        OK(rw_win_fence(RW_MODE_NOSUCCEED, addresses));
        for (unit = 0; unit < LONG; unit++)
            long_list[unit] = rank + round + unit;
        OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
        OK(rw_put(long_list, LONG, RW_INT64, right, there, LONG, RW_INT64, win));
        OK(rw_win_flush(right, win));
        OK(rw_fetch_and_op(&one, &seen, RW_INT64, right, there + 8, RW_SUM, win));
        OK(rw_win_unlock(right, win));
        CHECK(seen == rank + round + 1);
        OK(rw_barrier());
        for (unit = 0; unit < LONG; unit++)
            CHECK(list[unit] == left + round + unit + (unit == 1));
        OK(rw_win_detach(win, list));
        FAILS(rw_win_detach(win, list), RW_ERR_RMA_ATTACH, "nothing is attached");
        free(list);
        OK(rw_barrier());
        OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
        OK(rw_put(&one, 1, RW_INT64, right, there, 1, RW_INT64, win));
        FAILS(rw_win_unlock(right, win), RW_ERR_RMA_RANGE, "not in one region that it has attached");
        OK(rw_barrier());
    }
    bottom(win);
    OK(rw_win_attach(win, long_list, LONG));
    FAILS(rw_win_attach(win, (char *)long_list + LONG - 1, 8), RW_ERR_RMA_ATTACH, "attached already");
    FAILS(rw_win_attach(win, NULL, 8), RW_ERR_ARG, "NULL");
    FAILS(rw_win_attach(win, long_list, -1), RW_ERR_SIZE, "-1");
    FAILS(rw_win_attach(addresses, long_list, 8), RW_ERR_RMA_FLAVOR, "not dynamic");
    OK(rw_win_free(&win));
    OK(rw_win_free(&addresses));
    free(long_list);
}

/* The checking mode tells misuse in words. */
static void checks(void)
{
    int64_t *base, two[2] = {5, 6}, seen = 0;
    char words[512], wanted[128];
    rw_win win;
    snprintf(words, sizeof words, "%s;check=true;accumulate_ops=same_op", info);
    OK(rw_win_allocate(4 * sizeof *base, sizeof *base, words, &base, &win));
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    OK(rw_put(two, 2, RW_INT64, right, 0, 2, RW_INT64, win));
    snprintf(wanted, sizeof wanted,
             "put on rank %d, bytes 8 to 23, overlaps put on rank %d, bytes 0 to 15, at bytes 8 to 15",
             right, right);
    FAILS(rw_put(two, 2, RW_INT64, right, 1, 2, RW_INT64, win), RW_ERR_RMA_CONFLICT, wanted);
    FAILS(rw_get(two + 1, 1, RW_INT64, right, 3, 1, RW_INT64, win), RW_ERR_RMA_CONFLICT,
          "of this rank, as does");
    OK(rw_win_flush(right, win));
    OK(rw_accumulate(two, 1, RW_INT64, right, 2, 1, RW_INT64, RW_SUM, win));
    FAILS(rw_accumulate(two, 1, RW_DOUBLE, right, 2, 1, RW_DOUBLE, RW_SUM, win), RW_ERR_RMA_CONFLICT,
          "accumulates of one epoch have one type at a byte");
    FAILS(rw_accumulate(two, 1, RW_INT64, right, 2, 1, RW_INT64, RW_MAX, win), RW_ERR_RMA_CONFLICT,
          "the window promises one operator (same_op)");
    FAILS(rw_win_free(&win), RW_ERR_RMA_SYNC, "free within the epoch of lock of ranks [");
    OK(rw_win_unlock(right, win));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
    FAILS(rw_get(&seen, 1, RW_INT64, right, 0, 1, RW_INT64, win), RW_ERR_ASSERT, "NO_SUCCEED");
    OK(rw_win_get_info(win, words, sizeof words, NULL));
    CHECK(strstr(words, "check=true") != NULL && strstr(words, ";unchecked=0") != NULL);
    CHECK(base[0] == 5 && base[1] == 6 && base[2] == 5 && base[3] == 0);
    OK(rw_win_free(&win));
}

/* What a target refuses is told to the origin alone, and hangs nobody. */
static void refusals(void)
{
    int64_t *base, two[2] = {5, 6};
    int code;
    rw_win win;
    OK(rw_win_allocate(2 * sizeof *base, sizeof *base, info, &base, &win));
    OK(rw_win_fence(0, win));
    if (rank == 0)
        OK(rw_put(two, 2, RW_INT64, right, 1, 2, RW_INT64, win));
    code = rw_win_fence(0, win);
    CHECK(code == (rank == 0 ? RW_ERR_RMA_RANGE : RW_SUCCESS));
    CHECK(base[0] == 0 && base[1] == 0);
    OK(rw_barrier());
    OK(rw_put(two, 2, RW_INT64, right, 0, 2, RW_INT64, win));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
    CHECK(base[0] == 5 && base[1] == 6);
    OK(rw_win_free(&win));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    snprintf(info, sizeof info, "implementation=%s;name=test", argv[1]);
    OK(rw_init());
    OK(rw_rank(&rank));
    OK(rw_size(&size));
    right = (rank + 1) % size;
    left = (rank + size - 1) % size;
    rings();
    groups();
    transposed();
    locks();
    accumulates();
    reused();
    twice();
    notices();
    dynamic();
    checks();
    disagreements();
    shared(strcmp(argv[2], "shared") == 0);
    refusals();
    OK(rw_barrier());
    OK(rw_finalize());
    puts("ok");
    return 0;
}
