/* A program that hands memory to the library which is not its own: `freed`, or too `short`. Only a sanitizer sees it. */
#include "check.h"

enum { ELEMENTS = 64 };

int main(int argc, char **argv)
{
    rw_win win;
    int64_t *base;
    /* Volatile, so that no compiler sees it, too. */
    int64_t *volatile own;
    CHECK(argc == 2);
    OK(rw_init());
    OK(rw_win_allocate(ELEMENTS * sizeof *base, sizeof *base, NULL, &base, &win));
    OK(rw_win_lock_all(0, win));
    if (strcmp(argv[1], "freed") == 0) {
        own = malloc(ELEMENTS * sizeof *own);
        free(own);
        OK(rw_put(own, ELEMENTS, RW_INT64, 0, 0, ELEMENTS, RW_INT64, win));
    } else {
        own = malloc((ELEMENTS - 1) * sizeof *own);
        OK(rw_get(own, ELEMENTS, RW_INT64, 0, 0, ELEMENTS, RW_INT64, win));
    }
    OK(rw_win_flush(0, win));
    puts("ok");
    return 0;
}
