/* One rank, which is its own target: every operation, in every kind of epoch, over both kinds of memory and by both
 * implementations. */
#include "check.h"

static double grid[64];

static void fences(const char *info)
{
    double *base, out[4], in[4] = {0, 0, 0, 0};
    int at;
    rw_win win;
    for (at = 0; at < 4; at++)
        out[at] = at + 0.5;
    OK(rw_win_allocate(64 * sizeof *base, sizeof *base, info, &base, &win));
    CHECK(base[0] == 0 && base[63] == 0);
    OK(rw_win_fence(RW_MODE_NOPRECEDE, win));
    OK(rw_put(out, 4, RW_DOUBLE, 0, 8, 4, RW_DOUBLE, win));
    /* Short data are the program's at once; long ones behind the fence. */
    OK(rw_win_fence(0, win));
    CHECK(memcmp(base + 8, out, sizeof out) == 0);
    OK(rw_get(in, 4, RW_DOUBLE, 0, 8, 4, RW_DOUBLE, win));
    OK(rw_put(out, 1, RW_DOUBLE, RW_PROC_NULL, 0, 1, RW_DOUBLE, win));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
    CHECK(memcmp(in, out, sizeof in) == 0);
    OK(rw_win_free(&win));
    CHECK(win == RW_WIN_NULL);
}

static void general(const char *info)
{
    const int self[1] = {0};
    int flag = 0;
    double out = 3.25, in = 0;
    rw_win win;
    memset(grid, 0, sizeof grid);
    OK(rw_win_create(grid, sizeof grid, sizeof *grid, info, &win));
    OK(rw_win_post(1, self, 0, win));
    OK(rw_win_start(1, self, 0, win));
    OK(rw_put(&out, 1, RW_DOUBLE, 0, 63, 1, RW_DOUBLE, win));
    OK(rw_win_complete(win));
    OK(rw_win_wait(win));
    CHECK(grid[63] == 3.25);
    OK(rw_win_post(1, self, 0, win));
    OK(rw_win_test(win, &flag));
    CHECK(flag == 0);
    OK(rw_win_start(1, self, 0, win));
    OK(rw_get(&in, 1, RW_DOUBLE, 0, 63, 1, RW_DOUBLE, win));
    OK(rw_win_complete(win));
    CHECK(in == 3.25);
    while (!flag)
        OK(rw_win_test(win, &flag));
    /* Groups of nobody. */
    OK(rw_win_post(0, NULL, 0, win));
    OK(rw_win_start(0, NULL, 0, win));
    OK(rw_win_complete(win));
    OK(rw_win_wait(win));
    OK(rw_win_free(&win));
}

static void updates(const char *info)
{
    int64_t *base, one = 1, seven = 7, nine = 9, found = -1, many[3] = {1, 2, 3}, before[3];
    rw_win win;
    OK(rw_win_allocate(8 * sizeof *base, sizeof *base, info, &base, &win));
    OK(rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win));
    base[0] = 5;
    OK(rw_win_sync(win));
    OK(rw_accumulate(&seven, 1, RW_INT64, 0, 0, 1, RW_INT64, RW_SUM, win));
    OK(rw_fetch_and_op(&one, &found, RW_INT64, 0, 0, RW_SUM, win));
    OK(rw_win_flush(0, win));
    CHECK(found == 12 && base[0] == 13);
    OK(rw_fetch_and_op(NULL, &found, RW_INT64, 0, 0, RW_NO_OP, win));
    OK(rw_win_flush_local(0, win));
    CHECK(found == 13);
    seven = 13;
    OK(rw_compare_and_swap(&nine, &seven, &found, RW_INT64, 0, 0, win));
    OK(rw_win_flush_all(win));
    CHECK(found == 13 && base[0] == 9);
    OK(rw_compare_and_swap(&one, &seven, &found, RW_INT64, 0, 0, win));
    OK(rw_win_flush_local_all(win));
    CHECK(found == 9 && base[0] == 9);
    OK(rw_get_accumulate(many, 3, RW_INT64, before, 3, RW_INT64, 0, 4, 3, RW_INT64, RW_REPLACE, win));
    OK(rw_win_flush(0, win));
    CHECK(before[0] == 0 && before[2] == 0 && base[4] == 1 && base[6] == 3);
    OK(rw_get_accumulate(NULL, 0, RW_INT64, before, 3, RW_INT64, 0, 4, 3, RW_INT64, RW_NO_OP, win));
    OK(rw_win_unlock(0, win));
    CHECK(before[0] == 1 && before[2] == 3);
    OK(rw_win_free(&win));
}

static void requests(const char *info)
{
    int32_t *base, out[2] = {4, 5}, in[2] = {0, 0}, before = 0;
    rw_request all[4];
    rw_win win;
    int flag = 0, at;
    OK(rw_win_allocate(16, sizeof *base, info, &base, &win));
    OK(rw_win_lock_all(0, win));
    OK(rw_rput(out, 2, RW_INT32, 0, 0, 2, RW_INT32, win, &all[0]));
    OK(rw_wait(&all[0]));
    CHECK(all[0] == RW_REQUEST_NULL);
    OK(rw_wait(&all[0]));
    OK(rw_win_flush(0, win));
    OK(rw_rget(in, 2, RW_INT32, 0, 0, 2, RW_INT32, win, &all[0]));
    while (!flag)
        OK(rw_test(&all[0], &flag));
    CHECK(all[0] == RW_REQUEST_NULL && in[0] == 4 && in[1] == 5);
    OK(rw_raccumulate(out, 1, RW_INT32, 0, 2, 1, RW_INT32, RW_MAX, win, &all[0]));
    OK(rw_rget_accumulate(out, 1, RW_INT32, &before, 1, RW_INT32, 0, 1, 1, RW_INT32, RW_SUM, win, &all[1]));
    OK(rw_rput(out, 1, RW_INT32, RW_PROC_NULL, 0, 1, RW_INT32, win, &all[2]));
    all[3] = RW_REQUEST_NULL;
    OK(rw_waitall(4, all));
    for (at = 0; at < 4; at++)
        CHECK(all[at] == RW_REQUEST_NULL);
    CHECK(before == 5);
    OK(rw_rget(in, 1, RW_INT32, 0, 1, 1, RW_INT32, win, &all[1]));
    for (flag = 0; !flag;)
        OK(rw_testall(4, all, &flag));
    OK(rw_win_unlock_all(win));
    CHECK(in[0] == 9 && base[1] == 9 && base[2] == 4);
    OK(rw_win_free(&win));
}

/* More than is copied: the data are sent from where they lie. */
static void large(const char *info)
{
    enum { BYTES = 1 << 20 };
    unsigned char *base, *out = (unsigned char *)malloc(BYTES), *in = (unsigned char *)calloc(1, BYTES);
    rw_win win;
    int at;
    CHECK(out != NULL && in != NULL);
    for (at = 0; at < BYTES; at++)
        out[at] = (unsigned char)(at * 31 + (at >> 8));
    OK(rw_win_allocate(BYTES + 1, 1, info, &base, &win));
    OK(rw_win_fence(0, win));
    OK(rw_put(out, BYTES, RW_BYTE, 0, 1, BYTES, RW_BYTE, win));
    OK(rw_win_fence(0, win));
    CHECK(memcmp(base + 1, out, BYTES) == 0);
    OK(rw_get(in, BYTES, RW_BYTE, 0, 1, BYTES, RW_BYTE, win));
    OK(rw_win_fence(0, win));
    CHECK(memcmp(in, out, BYTES) == 0);
    OK(rw_win_free(&win));
    free(out);
    free(in);
}

/* All attributes of a window. */
static void attributes(rw_win win, const void *base, rw_aint bytes, int unit, int flavor)
{
    void *found = &found;
    rw_aint *size = NULL;
    int *number = NULL, flag = 0;
    OK(rw_win_get_attr(win, RW_WIN_BASE, &found, &flag));
    CHECK(flag == 1 && found == base);
    OK(rw_win_get_attr(win, RW_WIN_SIZE, &size, &flag));
    CHECK(flag == 1 && *size == bytes);
    OK(rw_win_get_attr(win, RW_WIN_DISP_UNIT, &number, &flag));
    CHECK(*number == unit);
    OK(rw_win_get_attr(win, RW_WIN_CREATE_FLAVOR, &number, &flag));
    CHECK(*number == flavor);
    OK(rw_win_get_attr(win, RW_WIN_MODEL, &number, &flag));
    CHECK(*number == RW_WIN_UNIFIED);
    FAILS(rw_win_get_attr(win, 77, &number, &flag), RW_ERR_ARG, "77");
    FAILS(rw_win_get_attr(win, RW_WIN_SIZE, NULL, &flag), RW_ERR_ARG, "NULL");
    FAILS(rw_win_get_attr(win, RW_WIN_SIZE, &size, NULL), RW_ERR_ARG, "NULL");
}

/* Names and infos that change. */
static void changes(void)
{
    char name[RW_MAX_OBJECT_NAME], text[512], many[2 * RW_MAX_OBJECT_NAME];
    int length = -1, ranks[2] = {7, 7}, size = 0;
    double *base, one = 1;
    rw_win win;
    OK(rw_win_allocate(8, 8, "no_locks=true", &base, &win));
    OK(rw_win_get_name(win, name, &length));
    CHECK(length == 0 && name[0] == 0);
    OK(rw_win_set_name(win, "halo"));
    OK(rw_win_get_name(win, name, NULL));
    CHECK(strcmp(name, "halo") == 0);
    FAILS(rw_put(&one, 1, RW_DOUBLE, 0, 0, 1, RW_DOUBLE, win), RW_ERR_RMA_SYNC, "(halo)");
    /* A name is cut; a character is not. */
    memset(many, 'x', sizeof many);
    memcpy(many + RW_MAX_OBJECT_NAME - 2, "\xc3\xa4", 2);
    many[sizeof many - 1] = 0;
    OK(rw_win_set_name(win, many));
    OK(rw_win_get_name(win, name, &length));
    CHECK(length == RW_MAX_OBJECT_NAME - 2 && strspn(name, "x") == (size_t)length && name[length] == 0);
    FAILS(rw_win_set_name(win, "a;b"), RW_ERR_ARG, "';'");
    FAILS(rw_win_set_name(win, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_set_name(win, "\xff"), RW_ERR_ARG, "UTF-8");
    FAILS(rw_win_get_name(win, NULL, &length), RW_ERR_ARG, "NULL");
    /* The keys that cannot change keep their values, and tell them. */
    OK(rw_win_set_info(win, "accumulate_ops=same_op;accumulate_ordering=none;name=other;"
                            "mpi_accumulate_granularity=64;no_locks=false;implementation=messages;"
                            "counters=9;eager_bytes=1;check=true;unheard_of=1"));
    OK(rw_win_get_info(win, text, sizeof text, NULL));
    CHECK(strstr(text, "implementation=direct;no_locks=true;accumulate_ordering=none;") == text);
    CHECK(strstr(text, "mpi_accumulate_granularity=64;eager_bytes=16384;") != NULL);
    CHECK(strstr(text, "counters=0;check=false;accumulate_ops=same_op_no_op;name=other") != NULL);
    CHECK(strstr(text, "unheard_of") == NULL);
    FAILS(rw_win_lock_all(0, win), RW_ERR_RMA_SYNC, "(other)");
    OK(rw_win_set_info(win, RW_INFO_NULL));
    FAILS(rw_win_set_info(win, "name=third;no_locks=perhaps"), RW_ERR_INFO, "'perhaps'");
    OK(rw_win_get_name(win, name, NULL));
    CHECK(strcmp(name, "other") == 0);
    OK(rw_win_set_info(win, "accumulate_ordering=raw,waw"));
    OK(rw_win_get_info(win, text, sizeof text, NULL));
    CHECK(strstr(text, "accumulate_ordering=rar,raw,war,waw;") != NULL);
    /* The group. */
    OK(rw_win_get_group(win, 2, ranks, &size));
    CHECK(size == 1 && ranks[0] == 0 && ranks[1] == 7);
    OK(rw_win_get_group(win, 0, NULL, &size));
    OK(rw_win_get_group(win, 1, ranks, NULL));
    FAILS(rw_win_get_group(win, 1, NULL, &size), RW_ERR_ARG, "NULL");
    FAILS(rw_win_get_group(win, -1, ranks, &size), RW_ERR_COUNT, "-1");
    OK(rw_win_free(&win));
    FAILS(rw_win_set_name(win, "gone"), RW_ERR_WIN, "no window");
    FAILS(rw_win_set_info(win, "name=gone"), RW_ERR_WIN, "no window");
    FAILS(rw_win_get_group(win, 2, ranks, &size), RW_ERR_WIN, "no window");
    FAILS(rw_win_get_attr(win, RW_WIN_SIZE, &base, &size), RW_ERR_WIN, "no window");
    /* The checking mode goes by the promise from then on. */
    OK(rw_win_allocate(8, 8, "check=true", &base, &win));
    OK(rw_win_lock_all(0, win));
    OK(rw_accumulate(&one, 1, RW_DOUBLE, 0, 0, 1, RW_DOUBLE, RW_SUM, win));
    OK(rw_accumulate(&one, 1, RW_DOUBLE, 0, 0, 1, RW_DOUBLE, RW_MAX, win));
    OK(rw_win_flush(0, win));
    OK(rw_win_set_info(win, "accumulate_ops=same_op_no_op"));
    OK(rw_accumulate(&one, 1, RW_DOUBLE, 0, 0, 1, RW_DOUBLE, RW_SUM, win));
    FAILS(rw_accumulate(&one, 1, RW_DOUBLE, 0, 0, 1, RW_DOUBLE, RW_MAX, win), RW_ERR_RMA_CONFLICT, "same_op");
    OK(rw_win_unlock_all(win));
    OK(rw_win_free(&win));
}

static void looks(void)
{
    char text[256], few[5];
    void *base = NULL, *again = NULL;
    rw_aint bytes = 0;
    rw_count needed = 0;
    int unit = 0;
    rw_win win;
    OK(rw_win_allocate(24, 8, "name=looks;no_locks=true;unheard_of=yes", &base, &win));
    OK(rw_win_get_base(win, &again));
    CHECK(base != NULL && again == base);
    OK(rw_win_get_size(win, 0, &bytes, &unit));
    CHECK(bytes == 24 && unit == 8);
    OK(rw_win_get_size(win, 0, NULL, NULL));
    OK(rw_win_get_info(win, text, sizeof text, &needed));
    CHECK(strstr(text, "implementation=direct;no_locks=true;") == text && strstr(text, "name=looks") != NULL);
    CHECK(needed == (rw_count)strlen(text) + 1);
    OK(rw_win_get_info(win, few, sizeof few, NULL));
    CHECK(strcmp(few, "impl") == 0);
    OK(rw_win_get_info(win, NULL, 0, &needed));
    attributes(win, base, 24, 8, RW_WIN_FLAVOR_ALLOCATE);
    FAILS(rw_win_shared_query(win, 0, &bytes, &unit, &again), RW_ERR_RMA_SHARED, "allocate_shared");
    OK(rw_win_free(&win));
    /* Alone with memory for all. */
    OK(rw_win_allocate_shared(24, 8, NULL, &base, &win));
    OK(rw_win_shared_query(win, RW_PROC_NULL, &bytes, &unit, &again));
    CHECK(base != NULL && again == base && bytes == 24 && unit == 8);
    OK(rw_win_shared_query(win, 0, NULL, NULL, NULL));
    attributes(win, base, 24, 8, RW_WIN_FLAVOR_SHARED);
    FAILS(rw_win_shared_query(win, 1, &bytes, &unit, &again), RW_ERR_RANK, "no rank 1");
    FAILS(rw_win_shared_query(win, -2, &bytes, &unit, &again), RW_ERR_RANK, "-2");
    OK(rw_win_free(&win));
    OK(rw_win_create_dynamic(NULL, &win));
    attributes(win, NULL, 0, 1, RW_WIN_FLAVOR_DYNAMIC);
    OK(rw_win_free(&win));
    /* A window of nothing. */
    OK(rw_win_create(NULL, 0, 1, NULL, &win));
    attributes(win, NULL, 0, 1, RW_WIN_FLAVOR_CREATE);
    OK(rw_win_fence(0, win));
    OK(rw_put(NULL, 0, RW_BYTE, 0, 0, 0, RW_BYTE, win));
    OK(rw_win_fence(0, win));
    OK(rw_win_free(&win));
}

int main(void)
{
    static const char *const infos[3] = {NULL, "implementation=direct", "implementation=messages;eager_bytes=1024"};
    int rank = -1, size = -1, at;
    uint64_t own = 42, all = 0;
    OK(rw_init());
    OK(rw_rank(&rank));
    OK(rw_size(&size));
    CHECK(rank == 0 && size == 1);
    OK(rw_barrier());
    OK(rw_allgather(&own, sizeof own, &all));
    CHECK(all == 42);
    for (at = 0; at < 3; at++) {
        fences(infos[at]);
        general(infos[at]);
        updates(infos[at]);
        requests(infos[at]);
        large(infos[at]);
    }
    looks();
    changes();
    OK(rw_finalize());
    puts("ok");
    return 0;
}
