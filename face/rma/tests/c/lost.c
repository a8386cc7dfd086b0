/* A rank ends without a word. Ranks that wait for it learn so, and the others go on with each other. */
#include "check.h"

int main(void)
{
    int64_t *base, number = 5, got = 0;
    int rank, code, other;
    rw_win win, gone;
    OK(rw_init());
    OK(rw_rank(&rank));
    OK(rw_win_allocate(2 * sizeof *base, sizeof *base, "name=lost", &base, &win));
    OK(rw_barrier());
    if (rank == 1) {
        /* Others are putting. */
        while (__atomic_load_n(base, __ATOMIC_ACQUIRE) == 0)
            usleep(100);
        _exit(0);
    }
    OK(rw_win_lock_all(0, win));
    do {
        code = rw_put(&number, 1, RW_INT64, 1, 0, 1, RW_INT64, win);
        if (code == RW_SUCCESS)
            code = rw_win_flush(1, win);
    } while (code == RW_SUCCESS);
    CHECK(code == RW_ERR_PEER && strstr(rw_last_error(), "window 0 (lost): rank 1") != NULL);
    other = 2 - rank;
    OK(rw_fetch_and_op(&number, &got, RW_INT64, other, 1, RW_SUM, win));
    OK(rw_win_flush(other, win));
    CHECK(got == 0);
    FAILS(rw_win_unlock_all(win), RW_ERR_PEER, "rank 1");
    /* It is freed all the same. */
    gone = win;
    FAILS(rw_win_free(&win), RW_ERR_PEER, "rank 1");
    CHECK(win == RW_WIN_NULL);
    FAILS(rw_win_free(&gone), RW_ERR_WIN, "no window");
    FAILS(rw_barrier(), RW_ERR_PEER, "rank 1");
    FAILS(rw_finalize(), RW_ERR_PEER, "rank 1");
    puts("ok");
    return 0;
}
