/* A process is a rank from its init to its finalize; a child that it forks meanwhile is none, and says so. */
#include "check.h"
#include <sys/wait.h>

static int status_of(pid_t child)
{
    int status = -1;
    CHECK(child >= 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(void)
{
    int64_t *base, one = 1;
    rw_win win;
    pid_t child = fork();
    if (child == 0) {
        /* Before the parent is a rank the child may become one. */
        OK(rw_init());
        OK(rw_finalize());
        exit(7);
    }
    CHECK(status_of(child) == 7);
    OK(rw_init());
    OK(rw_win_allocate(sizeof *base, 1, NULL, &base, &win));
    child = fork();
    if (child == 0) {
        FAILS(rw_win_fence(0, win), RW_ERR_INIT, "forked");
        FAILS(rw_barrier(), RW_ERR_INIT, "forked");
        FAILS(rw_init(), RW_ERR_INIT, "forked");
        FAILS(rw_finalize(), RW_ERR_INIT, "forked");
        _exit(8);
    }
    CHECK(status_of(child) == 8);
    OK(rw_win_fence(0, win));
    OK(rw_put(&one, 1, RW_INT64, 0, 0, 1, RW_INT64, win));
    OK(rw_win_fence(0, win));
    CHECK(*base == 1);
    /* A window that is left is gone with the library. */
    OK(rw_finalize());
    FAILS(rw_finalize(), RW_ERR_INIT, "has ended");
    puts("ok");
    return 0;
}
