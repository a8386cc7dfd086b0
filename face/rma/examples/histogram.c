/* A histogram of numbers that all ranks draw, in bins that are spread over all of them: each number is counted by a fetch
 * and add, so that all ranks contend for all bins. A fetch returns the number's place in its bin: no two numbers
 * have the same one. Bins and places are compared with what one process counts.
 *
 *   cc histogram.c $(pkg-config --cflags --libs libropewalk-rma) -o histogram
 *   ropewalk run -n 4 -- ./histogram
 */
#include <ropewalk_rma.h>
#include <stdio.h>
#include <string.h>

#define BINS 16
#define DRAWN 400

#define CALL(call)                                                                                \
    do {                                                                                          \
        if ((call) != RW_SUCCESS)                                                                 \
            rw_abort(1, rw_last_error());                                                         \
    } while (0)

/* The next number that a rank draws: small ones are more frequent. */
static int draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % BINS * ((*state >> 40) % BINS) / BINS);
}

static uint64_t seed(int rank)
{
    return (uint64_t)rank * 7919 + 1;
}

/* What one process counts in a bin. */
static int64_t serial(int bin, int size)
{
    int rank, at;
    int64_t count = 0;
    for (rank = 0; rank < size; rank++) {
        uint64_t state = seed(rank);
        for (at = 0; at < DRAWN; at++)
            count += draw(&state) == bin;
    }
    return count;
}

int main(void)
{
    int rank, size, own, at, bin;
    /* The own bins, then the sums of the places in each. */
    int64_t *bins, places[BINS];
    const int64_t one = 1;
    uint64_t state;
    rw_win win;
    CALL(rw_init());
    CALL(rw_rank(&rank));
    CALL(rw_size(&size));
    own = (BINS + size - 1) / size;
    CALL(rw_win_allocate(2 * own * (rw_aint)sizeof *bins, sizeof *bins, "name=histogram", &bins, &win));

    CALL(rw_win_lock_all(0, win));
    memset(places, 0, sizeof places);
    state = seed(rank);
    for (at = 0; at < DRAWN; at++) {
        int64_t place;
        bin = draw(&state);
        CALL(rw_fetch_and_op(&one, &place, RW_INT64, bin % size, bin / size, RW_SUM, win));
        CALL(rw_win_flush(bin % size, win));
        places[bin] += place;
    }
    for (bin = 0; bin < BINS; bin++)
        CALL(rw_accumulate(&places[bin], 1, RW_INT64, bin % size, own + bin / size, 1, RW_INT64, RW_SUM, win));
    CALL(rw_win_unlock_all(win));
    CALL(rw_barrier());

    CALL(rw_win_sync(win));
    for (bin = rank; bin < BINS; bin += size) {
        int64_t count = serial(bin, size);
        if (bins[bin / size] != count)
            rw_abort(1, "a bin has not what one process counts");
        if (bins[own + bin / size] != count * (count - 1) / 2)
            rw_abort(1, "two numbers have the same place in a bin");
    }
    CALL(rw_win_free(&win));
    CALL(rw_finalize());
    printf("histogram: rank %d of %d has what one process counts\n", rank, size);
    return 0;
}
