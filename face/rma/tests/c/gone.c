/* Memory of a window goes away while others reach it: it is unmapped, or the file behind it is cut. Every operation on it is
 * refused, whoever carries it, nobody dies of it, and what is left of the memory is as good as ever.
 *
 * usage: ropewalk run -n 2 -- gone IMPLEMENTATION */
#include "check.h"
#include <sys/mman.h>

/* The window is twice as long; its second half goes. */
enum { HALF = 1 << 20, NUMBERS = HALF / 8, PIECES = 200 };

static const uintptr_t FAR = (uintptr_t)1 << 45;

typedef enum { UNMAPPED, CUT } how;

static const char *implementation;
static int rank;
static int64_t data[NUMBERS], result[NUMBERS];
static rw_type pieces;

/* An operation at rank `to` is over: it was refused, with this name, if its memory is gone. */
static void ends(int code, const char *name, int to, int is_gone)
{
    char words[100];
    snprintf(words, sizeof words, "(gone): rank %d refused a", to);
    if (code != (is_gone ? RW_ERR_RMA_RANGE : RW_SUCCESS) || (is_gone && strstr(rw_last_error(), words) == NULL) ||
        (is_gone && strstr(rw_last_error(), "its memory is not there any more (was it unmapped") == NULL)) {
        fprintf(stderr, "%s at rank %d: %d, %s\n", name, to, code, rw_last_error());
        exit(1);
    }
}

#define REFUSED(call)                                                                                                \
    do {                                                                                                             \
        OK(rw_win_lock(RW_LOCK_SHARED, to, 0, win));                                                                 \
        OK(call);                                                                                                    \
        ends(rw_win_flush(to, win), #call, to, is_gone);                                                             \
        OK(rw_win_unlock(to, win));                                                                                  \
        OK(rw_win_lock(RW_LOCK_EXCLUSIVE, to, 0, win));                                                              \
        OK(call);                                                                                                    \
        ends(rw_win_unlock(to, win), #call " and its lock", to, is_gone);                                            \
    } while (0)

/* All operations, on the bytes from `at` on. */
static void operate(rw_win win, int to, rw_aint at, int is_gone)
{
    int64_t one = 1, other = 2;
    int code;
    rw_request request;
    rw_aint last = at + HALF - 8;
    REFUSED(rw_put(&one, 1, RW_INT64, to, at, 1, RW_INT64, win));
    REFUSED(rw_put(&one, 3, RW_BYTE, to, last + 1, 3, RW_BYTE, win));
    REFUSED(rw_put(data, 400, RW_INT64, to, at, 400, RW_INT64, win));
    REFUSED(rw_put(data, NUMBERS, RW_INT64, to, at, NUMBERS, RW_INT64, win));
    REFUSED(rw_put(data, PIECES, RW_INT64, to, at, 1, pieces, win));
    REFUSED(rw_get(&other, 1, RW_INT64, to, last, 1, RW_INT64, win));
    REFUSED(rw_get(result, 400, RW_INT64, to, at, 400, RW_INT64, win));
    REFUSED(rw_get(result, NUMBERS, RW_INT64, to, at, NUMBERS, RW_INT64, win));
    REFUSED(rw_get(result, PIECES, RW_INT64, to, at, 1, pieces, win));
    REFUSED(rw_accumulate(&one, 1, RW_INT64, to, at, 1, RW_INT64, RW_SUM, win));
    REFUSED(rw_accumulate(data, 1000, RW_INT64, to, at, 1000, RW_INT64, RW_MAX, win));
    REFUSED(rw_accumulate(data, NUMBERS, RW_INT64, to, at, NUMBERS, RW_INT64, RW_SUM, win));
    REFUSED(rw_accumulate(data, PIECES, RW_INT64, to, at, 1, pieces, RW_BXOR, win));
    REFUSED(rw_get_accumulate(data, 1000, RW_INT64, result, 1000, RW_INT64, to, at, 1000, RW_INT64, RW_SUM, win));
    REFUSED(rw_get_accumulate(NULL, 0, RW_INT64, result, 5000, RW_INT64, to, at, 5000, RW_INT64, RW_NO_OP, win));
    REFUSED(rw_fetch_and_op(&one, &other, RW_INT64, to, last, RW_SUM, win));
    REFUSED(rw_fetch_and_op(&one, &other, RW_BYTE, to, last + 3, RW_BOR, win));
    REFUSED(rw_compare_and_swap(&one, &other, result, RW_INT64, to, at, win));
    REFUSED(rw_compare_and_swap(&one, &other, result, RW_BYTE, to, at + 5, win));
    /* A request is over when the data are the user's again, or when the put is refused: the flush says the rest. */
    OK(rw_win_lock_all(0, win));
    OK(rw_rput(data, 100, RW_INT64, to, at, 100, RW_INT64, win, &request));
    code = rw_wait(&request);
    if (code == RW_SUCCESS)
        code = rw_win_flush(to, win);
    ends(code, "rw_rput", to, is_gone);
    OK(rw_win_unlock_all(win));
}

/* Puts of an epoch that a start began, to memory that is gone. Returns what its complete says. */
static int epoch_of_puts(rw_win win, rw_aint at, int puts, int count, rw_type type)
{
    const int other = 1 - rank;
    int code = RW_SUCCESS, sent = type == pieces ? PIECES : count;
    if (rank == 1) {
        OK(rw_win_post(1, &other, 0, win));
        OK(rw_win_wait(win));
        return code;
    }
    OK(rw_win_start(1, &other, 0, win));
    while (puts-- > 0)
        OK(rw_put(data, sent, RW_INT64, 1, at, count, type, win));
    return rw_win_complete(win);
}

/* A complete asks nothing back. What was refused comes then, or with the next synchronisation that waits for the target: in any
 * case, and not later. */
static void late(rw_win win, rw_aint base, rw_aint at, int puts, int count, rw_type type)
{
    const int64_t one = 1;
    int code = epoch_of_puts(win, at, puts, count, type);
    if (rank == 1)
        return;
    if (code != RW_SUCCESS)
        ends(code, "the complete of an epoch of puts", 1, 1);
    for (int later = 0; later < 2; ++later) {
        int was_told = code != RW_SUCCESS;
        OK(rw_win_lock(RW_LOCK_SHARED, 1, 0, win));
        OK(rw_put(&one, 1, RW_INT64, 1, base, 1, RW_INT64, win));
        code = rw_win_unlock(1, win);
        /* Of several that were refused, some may be told by the complete. */
        if (later || !was_told || code != RW_SUCCESS)
            ends(code, "the unlock behind an epoch of puts", 1, !later);
    }
}

/* Puts and gets in epochs of other kinds: whoever began them is told at their end, and the other one goes on. */
static void epochs(rw_win win, rw_aint base, rw_aint at)
{
    OK(rw_win_fence(RW_MODE_NOPRECEDE, win));
    if (rank == 0)
        OK(rw_put(data, 100, RW_INT64, 1, at, 100, RW_INT64, win));
    ends(rw_win_fence(RW_MODE_NOSUCCEED, win), "a put and a fence", 1, rank == 0);
    /* One short put, which goes with the end of its epoch; several, which go together; a long one; one with gaps. */
    late(win, base, at, 1, 1, RW_INT64);
    late(win, base, at, 3, 1, RW_INT64);
    late(win, base, at, 1, NUMBERS, RW_INT64);
    late(win, base, at, 1, 1, pieces);
    late(win, base, at, 2, NUMBERS / 2, RW_INT64);
}

static char *map(how way, int *file)
{
    int flags = way == CUT ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    char *memory;
    if (way == CUT) {
        *file = memfd_create("gone", 0);
        CHECK(*file >= 0 && ftruncate(*file, 2 * HALF) == 0);
    }
    /* Far from all other mappings: nobody's next one takes the place of what goes. */
    memory = (char *)mmap((void *)FAR, 2 * HALF, PROT_READ | PROT_WRITE, flags, *file, 0);
    CHECK(memory == (void *)FAR);
    memset(memory, 3, 2 * HALF);
    return memory;
}

static void take_away(how way, char *memory, int file)
{
    if (way == CUT)
        CHECK(ftruncate(file, HALF) == 0);
    else
        CHECK(munmap(memory + HALF, HALF) == 0);
}

/* `is_dynamic`: the memory is attached to a dynamic window, and not a window of its own. */
static void goes(how way, int is_dynamic)
{
    char info[100], *memory = NULL;
    int code, file = -1;
    rw_aint base = 0;
    rw_win win, table;
    const int64_t seven = 7;
    int64_t *shown;
    snprintf(info, sizeof info, "implementation=%s;name=gone", implementation);
    if (rank == 1)
        memory = map(way, &file);
    OK(rw_win_allocate(sizeof *shown, sizeof *shown, info, &shown, &table));
    if (is_dynamic) {
        OK(rw_win_create_dynamic(info, &win));
        if (rank == 1) {
            OK(rw_win_attach(win, memory, 2 * HALF));
            *shown = (int64_t)(intptr_t)memory;
        }
        OK(rw_win_fence(0, table));
        OK(rw_get(&base, 1, RW_INT64, 1, 0, 1, RW_INT64, table));
        OK(rw_win_fence(RW_MODE_NOSUCCEED, table));
    } else {
        OK(rw_win_create(memory, rank == 1 ? 2 * HALF : 0, 1, info, &win));
    }
    operate(win, 1, base, 0);
    OK(rw_barrier());
    operate(win, 1, base + HALF, 0);
    OK(rw_barrier());
    if (rank == 1)
        take_away(way, memory, file);
    OK(rw_barrier());
    if (rank == 0)
        operate(win, 1, base + HALF, 1);
    OK(rw_barrier());
    /* A rank is no safer from itself. */
    if (rank == 1)
        operate(win, 1, base + HALF, 1);
    OK(rw_barrier());
    operate(win, 1, base, 0);
    /* Some of the bytes are there. */
    if (rank == 0) {
        OK(rw_win_lock(RW_LOCK_SHARED, 1, 0, win));
        OK(rw_put(data, NUMBERS, RW_INT64, 1, base + HALF / 2, NUMBERS, RW_INT64, win));
        ends(rw_win_flush(1, win), "a put over the edge", 1, 1);
        OK(rw_get(result, NUMBERS, RW_INT64, 1, base + HALF / 2, NUMBERS, RW_INT64, win));
        ends(rw_win_flush(1, win), "a get over the edge", 1, 1);
        OK(rw_accumulate(data, NUMBERS, RW_INT64, 1, base + HALF / 2, NUMBERS, RW_INT64, RW_SUM, win));
        ends(rw_win_unlock(1, win), "an accumulate over the edge", 1, 1);
    }
    OK(rw_barrier());
    epochs(win, base, base + HALF);
    OK(rw_barrier());
    /* Another window between them is as good as ever. */
    *shown = 0;
    OK(rw_win_fence(0, table));
    OK(rw_put(&seven, 1, RW_INT64, 1 - rank, 0, 1, RW_INT64, table));
    OK(rw_win_fence(RW_MODE_NOSUCCEED, table));
    CHECK(*shown == 7);
    /* Nobody waits for the target any more: the end of the window tells. */
    code = epoch_of_puts(win, base + HALF, 1, 1, RW_INT64);
    OK(rw_barrier());
    if (is_dynamic && rank == 1)
        OK(rw_win_detach(win, memory));
    ends(rw_win_free(&win), "the free", 1, rank == 0 && code == RW_SUCCESS);
    if (rank == 1)
        CHECK(munmap(memory, 2 * HALF) == 0 && (way != CUT || close(file) == 0));
    OK(rw_win_free(&table));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    implementation = argv[1];
    OK(rw_init());
    OK(rw_rank(&rank));
    OK(rw_type_vector(PIECES, 1, 16, RW_INT64, &pieces));
    goes(UNMAPPED, 0);
    goes(CUT, 0);
    goes(UNMAPPED, 1);
    goes(CUT, 1);
    OK(rw_type_free(&pieces));
    OK(rw_finalize());
    puts("ok");
    return 0;
}
