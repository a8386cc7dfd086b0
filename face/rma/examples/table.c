/* A hash table that is spread over all ranks, in which all of them count words at once. A slot is taken by a compare and
 * swap of its key, from 0 to the word; whoever finds another word there goes on to the next slot. The counts are compared
 * with those of one process.
 *
 *   cc table.c $(pkg-config --cflags --libs libropewalk-rma) -o table
 *   ropewalk run -n 4 -- ./table
 */
#include <ropewalk_rma.h>
#include <stdio.h>

/* Slots of each rank: a key, which is 0 while the slot is free, and a count. */
#define SLOTS 256
#define WORDS 100
#define SEEN 300

#define CALL(call)                                                                                \
    do {                                                                                          \
        if ((call) != RW_SUCCESS)                                                                 \
            rw_abort(1, rw_last_error());                                                         \
    } while (0)

/* The n-th word that a rank sees: a number from 1 on. */
static int64_t word(int rank, int n)
{
    return (int64_t)(((uint64_t)n * n + (uint64_t)rank * 31 + 7) % WORDS) + 1;
}

static uint64_t hash(int64_t key)
{
    uint64_t mixed = (uint64_t)key * 0x9e3779b97f4a7c15u;
    return mixed >> 32;
}

/* The slot of a word, in the numbers of all ranks; takes a free one if `takes`. -1: there is none. */
static int64_t find(rw_win win, int size, int64_t key, int takes)
{
    const int64_t free_key = 0;
    int64_t all = (int64_t)size * SLOTS, tried;
    for (tried = 0; tried < all; tried++) {
        int64_t slot = (int64_t)((hash(key) + (uint64_t)tried) % (uint64_t)all), found;
        int owner = (int)(slot / SLOTS);
        rw_aint at = slot % SLOTS * 2;
        if (takes)
            CALL(rw_compare_and_swap(&key, &free_key, &found, RW_INT64, owner, at, win));
        else
            CALL(rw_fetch_and_op(NULL, &found, RW_INT64, owner, at, RW_NO_OP, win));
        CALL(rw_win_flush(owner, win));
        if (found == key || (takes && found == 0))
            return slot;
        if (found == 0)
            return -1;
    }
    return -1;
}

/* How often one process sees a word. */
static int64_t serial(int64_t key, int size)
{
    int rank, n;
    int64_t count = 0;
    for (rank = 0; rank < size; rank++)
        for (n = 0; n < SEEN; n++)
            count += word(rank, n) == key;
    return count;
}

int main(void)
{
    int rank, size, n;
    int64_t *slots, key;
    const int64_t one = 1;
    rw_win win;
    CALL(rw_init());
    CALL(rw_rank(&rank));
    CALL(rw_size(&size));
    CALL(rw_win_allocate(2 * SLOTS * (rw_aint)sizeof *slots, sizeof *slots, "name=table", &slots, &win));

    CALL(rw_win_lock_all(0, win));
    for (n = 0; n < SEEN; n++) {
        int64_t slot = find(win, size, word(rank, n), 1);
        if (slot < 0)
            rw_abort(1, "the table is full");
        CALL(rw_accumulate(&one, 1, RW_INT64, (int)(slot / SLOTS), slot % SLOTS * 2 + 1, 1, RW_INT64, RW_SUM, win));
    }
    CALL(rw_win_flush_all(win));
    CALL(rw_barrier());

    for (key = 1; key <= WORDS; key++) {
        int64_t slot = find(win, size, key, 0), count = 0;
        if (slot >= 0) {
            CALL(rw_get(&count, 1, RW_INT64, (int)(slot / SLOTS), slot % SLOTS * 2 + 1, 1, RW_INT64, win));
            CALL(rw_win_flush((int)(slot / SLOTS), win));
        }
        if (count != serial(key, size))
            rw_abort(1, "a word has not the count of one process");
    }
    CALL(rw_win_unlock_all(win));
    CALL(rw_win_free(&win));
    CALL(rw_finalize());
    printf("table: rank %d of %d finds what one process counts\n", rank, size);
    return 0;
}
