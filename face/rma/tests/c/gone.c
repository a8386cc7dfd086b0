/* Memory of a window goes away while others may reach it: it is unmapped, or the file behind it is cut. An origin that uses
 * cross-memory attach is told so, and nobody dies of it.
 *
 * usage: ropewalk run -n 2 -- gone */
#include "check.h"
#include <sys/mman.h>

enum { BYTES = 1 << 20 };

static int rank;
static char data[BYTES];

static void put_and_get(rw_win win, int is_gone)
{
    int code;
    OK(rw_win_lock(RW_LOCK_SHARED, 1, 0, win));
    OK(rw_put(data, BYTES, RW_BYTE, 1, 0, BYTES, RW_BYTE, win));
    code = rw_win_flush(1, win);
    CHECK(code == (is_gone ? RW_ERR_WIN : RW_SUCCESS));
    CHECK(!is_gone || strstr(rw_last_error(), "(gone): rank 1 refused a put") != NULL);
    OK(rw_get(data, BYTES, RW_BYTE, 1, 0, BYTES, RW_BYTE, win));
    code = rw_win_flush(1, win);
    CHECK(code == (is_gone ? RW_ERR_WIN : RW_SUCCESS));
    /* Its last page is gone, too, where only that one is asked for. */
    OK(rw_put(data, 8, RW_BYTE, 1, BYTES - 8, 8, RW_BYTE, win));
    code = rw_win_unlock(1, win);
    CHECK(code == (is_gone ? RW_ERR_WIN : RW_SUCCESS));
}

static void goes(int is_file)
{
    char *memory = NULL;
    int file = -1, flags = is_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    rw_win win;
    if (rank == 1) {
        if (is_file) {
            file = memfd_create("gone", 0);
            CHECK(file >= 0 && ftruncate(file, BYTES) == 0);
        }
        memory = (char *)mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, file, 0);
        CHECK(memory != MAP_FAILED);
        memset(memory, 3, BYTES);
    }
    OK(rw_win_create(memory, rank == 1 ? BYTES : 0, 1, "name=gone", &win));
    if (rank == 0)
        put_and_get(win, 0);
    OK(rw_barrier());
    if (rank == 1 && is_file)
        CHECK(ftruncate(file, 0) == 0);
    else if (rank == 1)
        CHECK(munmap(memory, BYTES) == 0);
    OK(rw_barrier());
    if (rank == 0)
        put_and_get(win, 1);
    OK(rw_barrier());
    OK(rw_win_free(&win));
}

int main(void)
{
    int64_t *base, number = 7;
    rw_win win;
    OK(rw_init());
    OK(rw_rank(&rank));
    OK(rw_win_allocate(sizeof *base, sizeof *base, NULL, &base, &win));
    goes(0);
    goes(1);
    /* Both are as good as ever. */
    OK(rw_win_fence(0, win));
    OK(rw_put(&number, 1, RW_INT64, 1 - rank, 0, 1, RW_INT64, win));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, win));
    CHECK(*base == 7);
    OK(rw_win_free(&win));
    OK(rw_finalize());
    puts("ok");
    return 0;
}
