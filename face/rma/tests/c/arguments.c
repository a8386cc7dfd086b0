/* Wrong arguments: each is a code with words, nothing happens, and the library goes on. */
#include "check.h"

static rw_win win;
static int64_t *base;

static void before(void)
{
    int number;
    FAILS(rw_rank(&number), RW_ERR_INIT, "was not initialized");
    FAILS(rw_barrier(), RW_ERR_INIT, "was not initialized");
    FAILS(rw_win_fence(0, RW_WIN_NULL), RW_ERR_INIT, "was not initialized");
    FAILS(rw_finalize(), RW_ERR_INIT, "was not initialized");
    CHECK(strcmp(rw_error_string(RW_SUCCESS), "success") == 0);
    CHECK(strstr(rw_error_string(RW_ERR_RMA_RANGE), "outside") != NULL);
    CHECK(strstr(rw_error_string(-5), "no code") != NULL && strstr(rw_error_string(4711), "no code") != NULL);
}

static void windows(void)
{
    void *other = NULL;
    rw_win made = RW_WIN_NULL;
    FAILS(rw_win_allocate(8, 1, NULL, NULL, &made), RW_ERR_ARG, "NULL");
    FAILS(rw_win_allocate(8, 1, NULL, &other, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_allocate(-1, 1, NULL, &other, &made), RW_ERR_SIZE, "-1 bytes");
    FAILS(rw_win_allocate(INT64_MAX, 1, NULL, &other, &made), RW_ERR_NO_MEM, "no room for the memory");
    FAILS(rw_win_allocate((rw_aint)1 << 60, 1, NULL, &other, &made), RW_ERR_NO_MEM, "no room for the memory");
    FAILS(rw_win_allocate_shared(8, 1, NULL, NULL, &made), RW_ERR_ARG, "NULL");
    FAILS(rw_win_allocate_shared(8, 1, NULL, &other, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_allocate_shared(-1, 1, NULL, &other, &made), RW_ERR_SIZE, "-1 bytes");
    FAILS(rw_win_allocate_shared(INT64_MAX, 1, NULL, &other, &made), RW_ERR_NO_MEM, "no room for the memory");
    FAILS(rw_win_allocate_shared(8, 0, NULL, &other, &made), RW_ERR_DISP, "unit of 0");
    FAILS(rw_win_allocate_shared(8, 1, "alloc_shared_noncontig=maybe", &other, &made), RW_ERR_INFO, "'maybe'");
    FAILS(rw_win_allocate(8, 0, NULL, &other, &made), RW_ERR_DISP, "unit of 0");
    FAILS(rw_win_allocate(8, -8, NULL, &other, &made), RW_ERR_DISP, "unit of -8");
    FAILS(rw_win_create(&other, 8, -1, NULL, &made), RW_ERR_DISP, "unit of -1");
    FAILS(rw_win_create(&other, 8, 0, NULL, &made), RW_ERR_DISP, "unit of 0");
    FAILS(rw_win_allocate(8, 1, "no_locks=perhaps", &other, &made), RW_ERR_INFO, "'perhaps'");
    FAILS(rw_win_allocate(8, 1, "no_locks", &other, &made), RW_ERR_INFO, "'no_locks'");
    FAILS(rw_win_allocate(8, 1, "eager_bytes=100000", &other, &made), RW_ERR_INFO, "100000");
    FAILS(rw_win_allocate(8, 1, "name=\xff\xfe", &other, &made), RW_ERR_ARG, "UTF-8");
    FAILS(rw_win_create(NULL, 8, 1, NULL, &made), RW_ERR_ARG, "NULL");
    FAILS(rw_win_create(&other, -8, 1, NULL, &made), RW_ERR_SIZE, "-8");
    FAILS(rw_win_create(&other, INT64_MAX, 1, NULL, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_create((void *)(uintptr_t)-16, 64, 1, NULL, &made), RW_ERR_SIZE, "addresses");
    CHECK(other == NULL && made == RW_WIN_NULL);
    FAILS(rw_win_free(NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_free(&made), RW_ERR_WIN, "no window");
    FAILS(rw_win_get_base(win, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_get_size(win, 1, NULL, NULL), RW_ERR_RANK, "1 is no rank");
    FAILS(rw_win_get_size(win, -1, NULL, NULL), RW_ERR_RANK, "-1 is no rank");
    FAILS(rw_win_shared_query(win, 0, NULL, NULL, &other), RW_ERR_RMA_SHARED, "allocate_shared does that");
    FAILS(rw_win_get_info(win, NULL, 10, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_get_info(win, NULL, -10, NULL), RW_ERR_SIZE, "-10");
}

/* Handles that are none, and those of what is gone. */
static void handles(void)
{
    rw_win copy, gone;
    void *other;
    rw_type type, old_type;
    rw_request request = (rw_request)(uintptr_t)0x1234567;
    int flag;
    OK(rw_win_allocate(8, 1, NULL, &other, &gone));
    copy = gone;
    OK(rw_win_free(&gone));
    FAILS(rw_win_fence(0, copy), RW_ERR_WIN, "no window");
    FAILS(rw_win_free(&copy), RW_ERR_WIN, "no window");
    OK(rw_win_allocate(8, 1, NULL, &other, &gone));
    FAILS(rw_win_sync(copy), RW_ERR_WIN, "no window");
    OK(rw_win_free(&gone));
    FAILS(rw_win_fence(0, (rw_win)(uintptr_t)-1), RW_ERR_WIN, "no window");
    FAILS(rw_win_unlock_all((rw_win)&flag), RW_ERR_WIN, "no window");
    OK(rw_type_contiguous(3, RW_INT, &type));
    old_type = type;
    OK(rw_type_free(&type));
    CHECK(type == RW_TYPE_NULL);
    FAILS(rw_type_free(&old_type), RW_ERR_TYPE, "no datatype");
    FAILS(rw_type_free(&type), RW_ERR_TYPE, "no datatype");
    type = RW_INT;
    FAILS(rw_type_free(&type), RW_ERR_TYPE, "predefined");
    FAILS(rw_type_contiguous(3, old_type, &type), RW_ERR_TYPE, "no datatype");
    FAILS(rw_type_contiguous(3, RW_PREDEFINED(22), &type), RW_ERR_TYPE, "no datatype");
    FAILS(rw_wait(&request), RW_ERR_REQUEST, "no request");
    FAILS(rw_test(&request, &flag), RW_ERR_REQUEST, "no request");
    FAILS(rw_waitall(1, &request), RW_ERR_REQUEST, "no request");
    flag = 7;
    FAILS(rw_testall(1, &request, &flag), RW_ERR_REQUEST, "no request");
    /* A flag is written behind an error, too: there is nothing to wait for. */
    CHECK(flag == 1);
    FAILS(rw_wait(NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_test(&request, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_waitall(-1, &request), RW_ERR_COUNT, "-1");
    FAILS(rw_waitall(2, NULL), RW_ERR_ARG, "NULL");
}

static void operations(void)
{
    int64_t one = 1, found = 77;
    rw_request request = RW_REQUEST_NULL;
    FAILS(rw_put(&one, 1, RW_INT64, 0, 0, 1, RW_INT64, win), RW_ERR_RMA_SYNC, "needs an access epoch");
    OK(rw_win_lock_all(0, win));
    FAILS(rw_put(NULL, 1, RW_INT64, 0, 0, 1, RW_INT64, win), RW_ERR_ARG, "NULL");
    FAILS(rw_get(NULL, 1, RW_INT64, 0, 0, 1, RW_INT64, win), RW_ERR_ARG, "NULL");
    FAILS(rw_put(&one, 1, RW_INT64, 1, 0, 1, RW_INT64, win), RW_ERR_RANK, "no rank 1 among 1");
    FAILS(rw_put(&one, 1, RW_INT64, -2, 0, 1, RW_INT64, win), RW_ERR_RANK, "-2 is no rank");
    FAILS(rw_put(&one, 1, RW_INT64, 0, -1, 1, RW_INT64, win), RW_ERR_DISP, "-1");
    FAILS(rw_put(&one, 1, RW_INT64, 0, INT64_MAX, 1, RW_INT64, win), RW_ERR_DISP, "farther");
    FAILS(rw_put(&one, -1, RW_INT64, 0, 0, 1, RW_INT64, win), RW_ERR_COUNT, "-1");
    FAILS(rw_put(&one, 1, RW_INT64, 0, 0, 2, RW_INT64, win), RW_ERR_COUNT, "8 bytes of data and the target 16");
    FAILS(rw_put(&one, INT64_MAX, RW_INT64, 0, 0, 1, RW_INT64, win), RW_ERR_COUNT, "addresses");
    FAILS(rw_get(&one, 1, RW_INT64, 0, 0, 2, RW_INT64, win), RW_ERR_COUNT, "16");
    FAILS(rw_put(&one, 1, RW_TYPE_NULL, 0, 0, 1, RW_INT64, win), RW_ERR_TYPE, "no datatype");
    FAILS(rw_put(&one, 1, RW_INT64, RW_PROC_NULL, 0, 1, RW_TYPE_NULL, win), RW_ERR_TYPE, "no datatype");
    FAILS(rw_accumulate(&one, 1, RW_INT64, 0, 0, 1, RW_INT64, 0, win), RW_ERR_OP, "0 is no operator");
    FAILS(rw_accumulate(&one, 1, RW_INT64, 0, 0, 1, RW_INT64, 99, win), RW_ERR_OP, "99 is no operator");
    FAILS(rw_accumulate(&one, 1, RW_DOUBLE, 0, 0, 1, RW_DOUBLE, RW_BAND, win), RW_ERR_OP, "not defined");
    FAILS(rw_accumulate(&one, 1, RW_INT64, 0, 0, 1, RW_DOUBLE, RW_SUM, win), RW_ERR_TYPE, "predefined type");
    FAILS(rw_fetch_and_op(NULL, &found, RW_INT64, 0, 0, RW_SUM, win), RW_ERR_ARG, "NULL");
    FAILS(rw_fetch_and_op(&one, NULL, RW_INT64, 0, 0, RW_SUM, win), RW_ERR_ARG, "NULL");
    FAILS(rw_compare_and_swap(NULL, &one, &found, RW_INT64, 0, 0, win), RW_ERR_ARG, "NULL");
    FAILS(rw_compare_and_swap(&one, NULL, &found, RW_INT64, 0, 0, win), RW_ERR_ARG, "NULL");
    FAILS(rw_compare_and_swap(RW_BOTTOM, &one, &found, RW_INT64, 0, 0, win), RW_ERR_ARG, "RW_BOTTOM");
    FAILS(rw_compare_and_swap(&one, RW_BOTTOM, &found, RW_INT64, 0, 0, win), RW_ERR_ARG, "RW_BOTTOM");
    FAILS(rw_compare_and_swap(&one, &one, &found, RW_DOUBLE, 0, 0, win), RW_ERR_TYPE, "compared");
    FAILS(rw_compare_and_swap(&one, &one, &found, RW_INT64, 4, 0, win), RW_ERR_RANK, "no rank 4");
    FAILS(rw_rput(&one, 1, RW_INT64, 0, 0, 1, RW_INT64, win, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_rput(NULL, 1, RW_INT64, 0, 0, 1, RW_INT64, win, &request), RW_ERR_ARG, "NULL");
    /* Nobody is asked nothing. */
    OK(rw_put(NULL, 1, RW_INT64, RW_PROC_NULL, -9, 1, RW_INT64, win));
    OK(rw_compare_and_swap(NULL, NULL, NULL, RW_INT64, RW_PROC_NULL, 0, win));
    OK(rw_fetch_and_op(NULL, NULL, RW_INT64, RW_PROC_NULL, 0, RW_SUM, win));
    OK(rw_win_unlock_all(win));
    CHECK(found == 77 && base[0] == 0 && base[1] == 0 && request == RW_REQUEST_NULL);
}

/* What lies outside of a window is told behind it, and nothing was written. */
static void ranges(void)
{
    int64_t two[2] = {1, 2};
    rw_request request;
    OK(rw_win_lock(RW_LOCK_SHARED, 0, 0, win));
    OK(rw_put(two, 2, RW_INT64, 0, 3, 2, RW_INT64, win));
    FAILS(rw_win_flush(0, win), RW_ERR_RMA_RANGE, "16 bytes from byte 24 on: its window has 32 bytes");
    OK(rw_win_flush(0, win));
    OK(rw_accumulate(two, 2, RW_INT64, 0, 4, 2, RW_INT64, RW_SUM, win));
    FAILS(rw_win_unlock(0, win), RW_ERR_RMA_RANGE, "refused");
    CHECK(base[3] == 0);
    OK(rw_win_lock(RW_LOCK_SHARED, 0, 0, win));
    OK(rw_rget(two, 2, RW_INT64, 0, 3, 2, RW_INT64, win, &request));
    FAILS(rw_wait(&request), RW_ERR_RMA_RANGE, "get");
    CHECK(request == RW_REQUEST_NULL);
    /* The epoch tells it, too. */
    FAILS(rw_win_unlock(0, win), RW_ERR_RMA_RANGE, "refused a get");
}

/* The first and the third of four requests were refused: all four are tested, and all are over. */
static void requests(void)
{
    int64_t numbers[4] = {1, 2, 3, 4};
    rw_request all[4], gone;
    int at, flag = 0;
    OK(rw_win_lock(RW_LOCK_SHARED, 0, 0, win));
    for (at = 0; at < 4; at++)
        OK(rw_rget(numbers + at, 1, RW_INT64, 0, at % 2 == 0 ? 40 + at : at, 1, RW_INT64, win, all + at));
    gone = all[0];
    FAILS(rw_testall(4, all, &flag), RW_ERR_RMA_RANGE, "from byte 320 on");
    CHECK(flag == 1);
    for (at = 0; at < 4; at++)
        CHECK(all[at] == RW_REQUEST_NULL);
    OK(rw_testall(4, all, &flag));
    CHECK(flag == 1);
    FAILS(rw_test(&gone, &flag), RW_ERR_REQUEST, "no request");
    CHECK(numbers[0] == 1 && numbers[1] == 0 && numbers[2] == 3 && numbers[3] == 0);
    FAILS(rw_win_unlock(0, win), RW_ERR_RMA_RANGE, "one more operation");
}

static void epochs(void)
{
    const int self[2] = {0, 0}, none[1] = {3}, negative[1] = {-3};
    rw_request request;
    int64_t one = 1;
    int flag;
    FAILS(rw_win_complete(win), RW_ERR_RMA_SYNC, "without start");
    FAILS(rw_win_wait(win), RW_ERR_RMA_SYNC, "without post");
    FAILS(rw_win_test(win, &flag), RW_ERR_RMA_SYNC, "without post");
    FAILS(rw_win_test(win, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_win_unlock(0, win), RW_ERR_RMA_SYNC, "without lock");
    FAILS(rw_win_flush(0, win), RW_ERR_RMA_SYNC, "needs a lock");
    FAILS(rw_win_start(2, self, 0, win), RW_ERR_RANK, "twice");
    FAILS(rw_win_start(1, none, 0, win), RW_ERR_RANK, "no rank 3");
    FAILS(rw_win_post(1, negative, 0, win), RW_ERR_RANK, "-3 is no rank");
    FAILS(rw_win_post(1, NULL, 0, win), RW_ERR_ARG, "NULL");
    FAILS(rw_win_post(-1, self, 0, win), RW_ERR_COUNT, "-1");
    FAILS(rw_win_fence(RW_MODE_NOCHECK, win), RW_ERR_ASSERT, "fence takes NO_STORE, NO_PUT, NO_PRECEDE, NO_SUCCEED");
    FAILS(rw_win_fence(4096, win), RW_ERR_ASSERT, "0x1000");
    FAILS(rw_win_lock(3, 0, 0, win), RW_ERR_LOCKTYPE, "3");
    FAILS(rw_win_lock(RW_LOCK_SHARED, 2, 0, win), RW_ERR_RANK, "no rank 2");
    FAILS(rw_win_lock(RW_LOCK_SHARED, RW_PROC_NULL, 0, win), RW_ERR_RANK, "-1 is no rank");
    OK(rw_win_lock(RW_LOCK_SHARED, 0, 0, win));
    FAILS(rw_win_lock(RW_LOCK_SHARED, 0, 0, win), RW_ERR_RMA_SYNC, "locked already");
    FAILS(rw_win_fence(0, win), RW_ERR_RMA_SYNC, "lock is open");
    FAILS(rw_win_free(&win), RW_ERR_RMA_SYNC, "lock is open");
    CHECK(win != RW_WIN_NULL);
    OK(rw_win_unlock(0, win));
    OK(rw_win_fence(0, win));
    FAILS(rw_rput(&one, 1, RW_INT64, 0, 0, 1, RW_INT64, win, &request), RW_ERR_RMA_SYNC, "needs a lock");
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
}

static void types(void)
{
    rw_type made = RW_TYPE_NULL;
    rw_count size, lengths[2] = {1, -1}, sizes[2] = {4, 4}, parts[2] = {2, 2}, starts[2] = {0, 3};
    rw_aint at[2] = {0, 8}, lower;
    rw_type two[2] = {RW_INT, RW_TYPE_NULL};
    FAILS(rw_type_contiguous(-1, RW_INT, &made), RW_ERR_COUNT, "-1");
    FAILS(rw_type_contiguous(1, RW_INT, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_type_contiguous(INT64_MAX, RW_INT, &made), RW_ERR_TYPE, "no datatype can be made");
    FAILS(rw_type_vector(2, 1, INT64_MAX, RW_INT, &made), RW_ERR_TYPE, "no datatype can be made");
    FAILS(rw_type_indexed(2, lengths, at, RW_INT, &made), RW_ERR_COUNT, "-1");
    FAILS(rw_type_indexed(2, NULL, at, RW_INT, &made), RW_ERR_ARG, "NULL");
    FAILS(rw_type_hindexed(-2, lengths, at, RW_INT, &made), RW_ERR_COUNT, "-2");
    FAILS(rw_type_indexed_block(2, 1, NULL, RW_INT, &made), RW_ERR_ARG, "NULL");
    lengths[1] = 1;
    FAILS(rw_type_create_struct(2, lengths, at, two, &made), RW_ERR_TYPE, "no datatype");
    FAILS(rw_type_create_subarray(2, sizes, parts, starts, RW_ORDER_C, RW_INT, &made), RW_ERR_ARG, "dimension 1");
    FAILS(rw_type_create_subarray(0, sizes, parts, starts, RW_ORDER_C, RW_INT, &made), RW_ERR_COUNT, "0 dimensions");
    FAILS(rw_type_create_subarray(2, sizes, parts, starts, 7, RW_INT, &made), RW_ERR_ARG, "7");
    FAILS(rw_type_size(RW_INT, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_type_size(RW_TYPE_NULL, &size), RW_ERR_TYPE, "no datatype");
    FAILS(rw_type_get_extent(RW_INT, &lower, NULL), RW_ERR_ARG, "NULL");
    CHECK(made == RW_TYPE_NULL);
}

static void team(void)
{
    char part[8] = "seven", all[8];
    FAILS(rw_init(), RW_ERR_INIT, "initialized already");
    FAILS(rw_rank(NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_size(NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_allgather(NULL, 8, all), RW_ERR_ARG, "NULL");
    FAILS(rw_allgather(part, 8, NULL), RW_ERR_ARG, "NULL");
    FAILS(rw_allgather(part, -1, all), RW_ERR_SIZE, "-1");
    FAILS(rw_allgather(part, RW_ALLGATHER_MAX + 1, all), RW_ERR_SIZE, "32769");
    OK(rw_allgather(NULL, 0, NULL));
    OK(rw_allgather(part, 8, all));
    CHECK(strcmp(all, "seven") == 0);
}

int main(void)
{
    before();
    OK(rw_init());
    OK(rw_win_allocate(4 * sizeof *base, sizeof *base, "name=arguments", &base, &win));
    windows();
    handles();
    operations();
    ranges();
    requests();
    epochs();
    types();
    team();
    CHECK(strstr(rw_last_error(), "32769") != NULL);
    OK(rw_win_free(&win));
    OK(rw_finalize());
    FAILS(rw_barrier(), RW_ERR_INIT, "has ended");
    FAILS(rw_win_fence(0, win), RW_ERR_INIT, "has ended");
    FAILS(rw_init(), RW_ERR_INIT, "a process is a rank once");
    puts("ok");
    return 0;
}
