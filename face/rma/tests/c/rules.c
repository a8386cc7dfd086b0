/* The rules of docs/spec/windows.md between several ranks, one after the other, by the implementation that the argument names.
 * R8 is types.c and long_double.c; R16 is refusals() of ranks.c, gone.c and killed.c; R18 is killed.c and stopped.c.
 *
 * usage: ropewalk run -n 4 -- rules IMPLEMENTATION shared|apart */
#include "check.h"

enum { WORDS = 64 };

static int rank, size, right, left;
static char info[128];
static int64_t *base;
static rw_win win;

static void begin(void)
{
    OK(rw_win_allocate(WORDS * sizeof *base, sizeof *base, info, &base, &win));
}

static void end(void)
{
    OK(rw_win_free(&win));
}

/* The value has a place of its own until the operation is long over. */
static int put(int64_t value, int target, int at)
{
    static int64_t values[1024];
    static unsigned next;
    int64_t *own = &values[next++ % 1024];
    *own = value;
    return rw_put(own, 1, RW_INT64, target, at, 1, RW_INT64, win);
}

/* An origin has one access epoch at a time; its own exposure is apart. */
static void r1_epochs(void)
{
    int to = right, from = left;
    begin();
    FAILS(put(1, right, 0), RW_ERR_RMA_SYNC, "needs an access epoch");
    FAILS(rw_win_flush(right, win), RW_ERR_RMA_SYNC, "flush");
    OK(rw_win_post(1, &from, 0, win));
    OK(rw_win_start(1, &to, 0, win));
    FAILS(rw_win_lock(RW_LOCK_SHARED, right, 0, win), RW_ERR_RMA_SYNC, "start is open");
    FAILS(rw_win_fence(0, win), RW_ERR_RMA_SYNC, "start is open");
    OK(put(7, right, 0));
    OK(rw_win_complete(win));
    OK(rw_win_wait(win));
    CHECK(base[0] == 7);
    /* A lock takes the place of a fence in which nothing was done. */
    OK(rw_win_fence(0, win));
    OK(rw_win_lock(RW_LOCK_EXCLUSIVE, right, 0, win));
    FAILS(rw_win_fence(0, win), RW_ERR_RMA_SYNC, "lock is open");
    OK(put(8, right, 0));
    OK(rw_win_unlock(right, win));
    OK(rw_barrier());
    OK(rw_win_sync(win));
    CHECK(base[0] == 8);
    end();
}

/* What a fence asserts takes its work away, not its meeting. */
static void r2_asserts_of_fences(void)
{
    int64_t got = 0;
    begin();
    base[1] = rank;
    OK(rw_win_fence(RW_MODE_NOPRECEDE | RW_MODE_NOPUT, win));
    OK(rw_get(&got, 1, RW_INT64, right, 1, 1, RW_INT64, win));
    OK(rw_win_fence(RW_MODE_NOSTORE, win));
    CHECK(got == right);
    OK(put(rank + 1, right, 0));
    OK(rw_win_fence(RW_MODE_NOSTORE | RW_MODE_NOSUCCEED, win));
    CHECK(base[0] == left + 1);
    FAILS(put(1, right, 0), RW_ERR_RMA_SYNC, "needs an access epoch");
    end();
}

/* The k-th start meets the k-th post; a post waits for a start that comes later, and a start does not wait for a post. */
static void r3_posts_and_starts(void)
{
    int origin = 0, first = 1, last = size - 1, own = rank, flag = 0, round;
    begin();
    for (round = 1; round <= 3; round++) {
        int posts = rank == first || rank == last, starts_first = round == 2;
        if (posts && !starts_first)
            OK(rw_win_post(1, &origin, 0, win));
        if (!starts_first)
            OK(rw_barrier());
        if (rank == origin) {
            OK(rw_win_start(1, &first, 0, win));
            OK(put(round, first, 0));
        }
        if (starts_first) {
            OK(rw_barrier());
            if (posts)
                OK(rw_win_post(1, &origin, 0, win));
        }
        if (rank == origin) {
            OK(rw_win_complete(win));
            if (last != first) {
                /* Its post has been here all the time. */
                OK(rw_win_start(1, &last, 0, win));
                OK(put(10 * round, last, 0));
                OK(rw_win_complete(win));
            }
        }
        if (posts) {
            /* A test that says no changes nothing. */
            for (flag = 0; !flag;)
                OK(rw_win_test(win, &flag));
            CHECK(base[0] == (rank == first ? round : 10 * round));
        }
        OK(rw_barrier());
    }
    OK(rw_win_post(0, NULL, 0, win));
    OK(rw_win_start(0, NULL, 0, win));
    OK(rw_win_complete(win));
    OK(rw_win_wait(win));
    OK(rw_win_post(1, &own, 0, win));
    OK(rw_win_start(1, &own, 0, win));
    OK(put(5, own, 3));
    OK(rw_win_complete(win));
    OK(rw_win_wait(win));
    CHECK(base[3] == 5);
    end();
}

/* Those who wait for a lock get it in the order in which they asked, and a test never waits for one. */
static void r4_locks(void)
{
    enum { MOST = 64 };
    int64_t one = 1, place = -1;
    int owner = size - 1, turn, flag = 0, round, turns[MOST];
    rw_request request = RW_REQUEST_NULL;
    CHECK(size <= MOST);
    begin();
    if (rank == 0) {
        OK(rw_win_lock(RW_LOCK_EXCLUSIVE, owner, 0, win));
        OK(put(100, owner, 0));
        OK(rw_win_flush(owner, win));
    }
    OK(rw_barrier());
    for (turn = 1; turn < size; turn++) {
        if (rank == turn && rank != owner) {
            OK(rw_win_lock(RW_LOCK_EXCLUSIVE, owner, 0, win));
            OK(rw_rget_accumulate(&one, 1, RW_INT64, &place, 1, RW_INT64, owner, 0, 1, RW_INT64, RW_SUM, win,
                                  &request));
            OK(rw_test(&request, &flag));
            CHECK(!flag);
        }
        /* What this rank tells all of them comes behind its request, and the owner has it before it tells them more. */
        OK(rw_allgather(&turn, sizeof turn, turns));
        OK(rw_allgather(&turn, sizeof turn, turns));
    }
    if (rank == 0)
        OK(rw_win_unlock(owner, win));
    else if (rank != owner) {
        OK(rw_wait(&request));
        CHECK(place == 100 + rank - 1);
        OK(rw_win_unlock(owner, win));
    }
    OK(rw_barrier());
    /* A lock of all and exclusive ones starve nobody. */
    for (round = 0; round < 20; round++) {
        if ((round + rank) % 2 == 0) {
            OK(rw_win_lock_all(0, win));
            OK(rw_accumulate(&one, 1, RW_INT64, right, 1, 1, RW_INT64, RW_SUM, win));
            OK(rw_win_unlock_all(win));
        } else {
            OK(rw_win_lock(RW_LOCK_EXCLUSIVE, right, 0, win));
            OK(rw_get(&place, 1, RW_INT64, right, 1, 1, RW_INT64, win));
            OK(rw_win_flush(right, win));
            OK(put(place + 1, right, 1));
            OK(rw_win_unlock(right, win));
        }
    }
    OK(rw_barrier());
    OK(rw_win_lock(RW_LOCK_SHARED, rank, 0, win));
    CHECK(base[1] == 20);
    OK(rw_win_unlock(rank, win));
    /* Several targets, each once. */
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    FAILS(rw_win_lock(RW_LOCK_SHARED, right, 0, win), RW_ERR_RMA_SYNC, "lock");
    if (left != right)
        OK(rw_win_lock(RW_LOCK_SHARED, left, 0, win));
    OK(rw_win_unlock(right, win));
    if (left != right)
        OK(rw_win_unlock(left, win));
    end();
}

/* A flush completes at the target, a request here; what they name may be used again, or be freed. */
static void r5_completion(void)
{
    enum { MANY = 32 };
    rw_request requests[2];
    int64_t data[MANY], got[MANY];
    rw_type pairs;
    int at;
    begin();
    OK(rw_win_lock_all(0, win));
    for (at = 0; at < MANY; at++)
        data[at] = 1000 * rank + at;
    OK(rw_type_vector(MANY / 2, 1, 2, RW_INT64, &pairs));
    OK(rw_rput(data, MANY / 2, RW_INT64, right, 0, 1, pairs, win, &requests[0]));
    OK(rw_type_free(&pairs));
    OK(rw_wait(&requests[0]));
    memset(data, 0xff, sizeof data);
    OK(rw_win_flush(right, win));
    OK(rw_barrier());
    OK(rw_win_sync(win));
    for (at = 0; at < MANY / 2; at++)
        CHECK(base[2 * at] == 1000 * left + at);
    OK(rw_rget(got, MANY, RW_INT64, right, 0, MANY, RW_INT64, win, &requests[0]));
    OK(rw_rget(data, 1, RW_INT64, left, 2, 1, RW_INT64, win, &requests[1]));
    OK(rw_waitall(2, requests));
    CHECK(got[2] == 1000 * rank + 1 && data[0] == 1000 * ((left + size - 1) % size) + 1);
    OK(rw_barrier());
    data[0] = 77;
    OK(rw_put(data, 1, RW_INT64, right, 1, 1, RW_INT64, win));
    OK(rw_win_flush_local(right, win));
    data[0] = 0;
    OK(rw_win_unlock_all(win));
    OK(rw_barrier());
    CHECK(base[1] == 77);
    end();
}

/* Accumulates of one origin keep their order, whatever their lengths. */
static void r6_order(void)
{
    enum { MOST = 40000 };
    static const int lengths[] = { 1, MOST, 10, 3000, 2, MOST, 1 };
    int64_t *large, *data = (int64_t *)malloc(MOST * sizeof *data), value;
    int round, at, of = (int)(sizeof lengths / sizeof *lengths);
    rw_win big;
    CHECK(data != NULL);
    OK(rw_win_allocate(MOST * sizeof *large, sizeof *large, info, &large, &big));
    OK(rw_win_lock_all(0, big));
    for (round = 0; round < of; round++) {
        value = 100 * rank + round;
        for (at = 0; at < MOST; at++)
            data[at] = value;
        OK(rw_accumulate(data, lengths[round], RW_INT64, right, 0, lengths[round], RW_INT64, RW_REPLACE, big));
        OK(rw_win_flush_local(right, big));
    }
    OK(rw_win_unlock_all(big));
    OK(rw_barrier());
    CHECK(large[0] == 100 * left + 6 && large[1] == 100 * left + 5 && large[MOST - 1] == 100 * left + 5);
    OK(rw_win_free(&big));
    free(data);
}

/* Elements are changed one at a time, whoever changes them. */
static void r7_atomicity(void)
{
    enum { ROUNDS = 40 };
    int64_t ones[WORDS], before, seen = -1, wanted, got;
    int at, round;
    begin();
    for (at = 0; at < WORDS; at++)
        ones[at] = 1;
    OK(rw_win_lock_all(0, win));
    for (round = 0; round < ROUNDS; round++) {
        OK(rw_accumulate(ones, WORDS - 2, RW_INT64, 0, 2, WORDS - 2, RW_INT64, RW_SUM, win));
        OK(rw_fetch_and_op(ones, &before, RW_INT64, 0, 0, RW_SUM, win));
        OK(rw_win_flush(0, win));
        CHECK(before > seen);
        seen = before;
        /* An addition by compare-and-swap; a no-op reads. */
        do {
            OK(rw_fetch_and_op(NULL, &before, RW_INT64, 0, 1, RW_NO_OP, win));
            OK(rw_win_flush(0, win));
            wanted = before + 1;
            OK(rw_compare_and_swap(&wanted, &before, &got, RW_INT64, 0, 1, win));
            OK(rw_win_flush(0, win));
        } while (got != before);
    }
    OK(rw_win_unlock_all(win));
    OK(rw_barrier());
    if (rank == 0) {
        OK(rw_win_lock(RW_LOCK_SHARED, 0, 0, win));
        for (at = 0; at < WORDS; at++)
            CHECK(base[at] == (int64_t)ROUNDS * size);
        OK(rw_win_unlock(0, win));
    }
    end();
}

/* Equal values of a pair take the lower index; operators that a type does not take are refused by the call. */
static void r9_operators(void)
{
    struct { long value; int index; } *pairs, own;
    double half = 0.5;
    rw_win of_pairs;
    OK(rw_win_allocate(2 * sizeof *pairs, sizeof *pairs, info, &pairs, &of_pairs));
    pairs[0].value = -1;
    pairs[0].index = 99;
    memset(&own, 0, sizeof own);
    own.value = rank / 2;
    own.index = rank;
    OK(rw_win_fence(0, of_pairs));
    OK(rw_accumulate(&own, 1, RW_LONG_INT, 0, 0, 1, RW_LONG_INT, RW_MAXLOC, of_pairs));
    FAILS(rw_accumulate(&half, 1, RW_DOUBLE, 0, 0, 1, RW_DOUBLE, RW_BAND, of_pairs), RW_ERR_OP, "not defined");
    OK(rw_win_fence(RW_MODE_NOSUCCEED, of_pairs));
    if (rank == 0)
        CHECK(pairs[0].value == (size - 1) / 2 && pairs[0].index == (size - 1) / 2 * 2);
    OK(rw_win_free(&of_pairs));
}

/* An operation is judged whole before its first byte. */
static void r10_places(void)
{
    int64_t two[2] = { 5, 6 };
    rw_type backwards;
    begin();
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    OK(rw_put(two, 2, RW_INT64, right, WORDS - 1, 2, RW_INT64, win));
    CHECK(rw_win_unlock(right, win) == RW_ERR_RMA_RANGE);
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    OK(rw_type_vector(2, 1, -1, RW_INT64, &backwards));
    OK(rw_put(two, 2, RW_INT64, right, 0, 1, backwards, win));
    CHECK(rw_win_flush(right, win) == RW_ERR_RMA_RANGE);
    OK(rw_put(two, 2, RW_INT64, right, 4, 1, backwards, win));
    OK(rw_win_unlock(right, win));
    OK(rw_type_free(&backwards));
    OK(rw_barrier());
    OK(rw_win_sync(win));
    CHECK(base[WORDS - 1] == 0 && base[0] == 0 && base[4] == 5 && base[3] == 6);
    end();
}

/* Nothing is legal, within an epoch. */
static void r11_nothing(void)
{
    int64_t word = 3, *none;
    rw_win empty;
    begin();
    FAILS(rw_put(&word, 0, RW_INT64, right, WORDS, 0, RW_INT64, win), RW_ERR_RMA_SYNC, "access epoch");
    OK(rw_win_fence(0, win));
    OK(rw_put(&word, 0, RW_INT64, right, WORDS, 0, RW_INT64, win));
    OK(rw_get(NULL, 0, RW_INT64, right, 0, 0, RW_INT64, win));
    OK(rw_put(&word, 1, RW_INT64, RW_PROC_NULL, 0, 1, RW_INT64, win));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
    end();
    OK(rw_win_allocate(0, 1, info, &none, &empty));
    OK(rw_win_fence(0, empty));
    OK(rw_put(&word, 0, RW_INT64, right, 0, 0, RW_INT64, empty));
    OK(rw_win_fence(0, empty));
    OK(rw_win_free(&empty));
}

/* Who waits on one window serves the others. */
static void r12_several_windows(void)
{
    int64_t *other, got = 0;
    int to = right, from = left;
    rw_win second;
    begin();
    OK(rw_win_allocate(sizeof *other, sizeof *other, info, &other, &second));
    base[0] = 10 + rank;
    OK(rw_barrier());
    OK(rw_win_post(1, &from, 0, second));
    OK(rw_win_start(1, &to, 0, second));
    OK(rw_win_lock(RW_LOCK_SHARED, right, 0, win));
    OK(rw_get(&got, 1, RW_INT64, right, 0, 1, RW_INT64, win));
    OK(rw_win_unlock(right, win));
    CHECK(got == 10 + right);
    OK(rw_put(&got, 1, RW_INT64, right, 0, 1, RW_INT64, second));
    OK(rw_win_complete(second));
    OK(rw_win_wait(second));
    CHECK(*other == 10 + rank);
    OK(rw_win_free(&second));
    end();
}

/* Memory that is detached and attached again is found; what is not attached is refused. */
static void r13_dynamic_windows(void)
{
    enum { MOST = 64 };
    int64_t memory[2] = { 0, 0 }, value = rank;
    rw_aint own, all[MOST];
    rw_win dynamic_window;
    int round;
    CHECK(size <= MOST);
    OK(rw_win_create_dynamic(info, &dynamic_window));
    OK(rw_get_address(memory, &own));
    OK(rw_allgather(&own, sizeof own, all));
    for (round = 0; round < 3; round++) {
        OK(rw_win_attach(dynamic_window, memory, sizeof memory));
        OK(rw_barrier());
        value = 10 * rank + round;
        OK(rw_win_lock(RW_LOCK_SHARED, right, 0, dynamic_window));
        OK(rw_put(&value, 1, RW_INT64, right, all[right] + 8, 1, RW_INT64, dynamic_window));
        OK(rw_win_unlock(right, dynamic_window));
        OK(rw_barrier());
        OK(rw_win_detach(dynamic_window, memory));
        CHECK(memory[0] == 0 && memory[1] == 10 * left + round);
        OK(rw_barrier());
        OK(rw_win_lock(RW_LOCK_SHARED, right, 0, dynamic_window));
        OK(rw_put(&value, 1, RW_INT64, right, all[right], 1, RW_INT64, dynamic_window));
        CHECK(rw_win_unlock(right, dynamic_window) == RW_ERR_RMA_RANGE);
        OK(rw_barrier());
        CHECK(memory[0] == 0);
    }
    OK(rw_win_free(&dynamic_window));
}

/* Each rank's part of shared memory begins where the one before ends; ranks that share none are told so. */
static void r14_shared_windows(int shares)
{
    int64_t *own = NULL, *of_left = NULL;
    rw_win shared_window;
    int unit;
    rw_aint bytes;
    if (!shares) {
        FAILS(rw_win_allocate_shared(8, 8, info, &own, &shared_window), RW_ERR_RMA_SHARED, "share");
        return;
    }
    OK(rw_win_allocate_shared((rank + 1) * 8, 8, info, &own, &shared_window));
    OK(rw_win_shared_query(shared_window, left, &bytes, &unit, &of_left));
    CHECK(bytes == (left + 1) * 8 && unit == 8);
    if (rank > 0)
        CHECK(own == of_left + rank);
    OK(rw_win_lock_all(0, shared_window));
    own[0] = rank;
    OK(rw_win_sync(shared_window));
    OK(rw_barrier());
    OK(rw_win_sync(shared_window));
    CHECK(of_left[0] == left);
    OK(rw_win_unlock_all(shared_window));
    OK(rw_win_free(&shared_window));
}

/* Bytes from afar are there behind a notice, without a call that ends an epoch. */
static void r15_model(void)
{
    char with_counters[160];
    rw_count notices;
    int round;
    snprintf(with_counters, sizeof with_counters, "%s;counters=1", info);
    OK(rw_win_allocate(WORDS * sizeof *base, sizeof *base, with_counters, &base, &win));
    OK(rw_win_lock_all(0, win));
    for (round = 1; round <= 50; round++) {
        int64_t value = round;
        OK(put(value, right, 5));
        OK(rw_put_notify(&value, 1, RW_INT64, right, 6, 1, RW_INT64, 0, win));
        OK(rw_win_wait_notices(win, 0, round));
        CHECK(base[5] >= round && base[6] >= round);
        OK(rw_win_notices(win, 0, &notices));
        CHECK(notices >= round);
        OK(rw_win_flush_all(win));
    }
    OK(rw_win_unlock_all(win));
    end();
}

/* The checking mode sees what overlaps. */
static void r17_checking_mode(void)
{
    char checked[160];
    int64_t two[2] = { 1, 2 };
    snprintf(checked, sizeof checked, "%s;check=true", info);
    OK(rw_win_allocate(WORDS * sizeof *base, sizeof *base, checked, &base, &win));
    OK(rw_win_fence(0, win));
    OK(rw_put(two, 2, RW_INT64, right, 0, 2, RW_INT64, win));
    FAILS(rw_put(two, 1, RW_INT64, right, 1, 1, RW_INT64, win), RW_ERR_RMA_CONFLICT, "put");
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
    end();
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    snprintf(info, sizeof info, "implementation=%s;name=rules", argv[1]);
    OK(rw_init());
    OK(rw_rank(&rank));
    OK(rw_size(&size));
    CHECK(size > 1);
    right = (rank + 1) % size;
    left = (rank + size - 1) % size;
    r1_epochs();
    r2_asserts_of_fences();
    r3_posts_and_starts();
    r4_locks();
    r5_completion();
    r6_order();
    r7_atomicity();
    r9_operators();
    r10_places();
    r11_nothing();
    r12_several_windows();
    r13_dynamic_windows();
    r14_shared_windows(strcmp(argv[2], "shared") == 0);
    r15_model();
    r17_checking_mode();
    OK(rw_barrier());
    OK(rw_finalize());
    puts("ok");
    return 0;
}
