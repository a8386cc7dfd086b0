/* Jacobi's iteration on a square whose upper edge is hot: each rank has some rows, and puts its first and its last one
 * into its neighbours' memory, between two fences. The result is compared with that of one process.
 *
 *   cc jacobi.c $(pkg-config --cflags --libs libropewalk-rma) -o jacobi
 *   ropewalk run -n 4 -- ./jacobi
 */
#include <ropewalk_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INNER 64
#define WIDTH (INNER + 2)
#define ITERATIONS 100

#define CALL(call)                                                                                \
    do {                                                                                          \
        if ((call) != RW_SUCCESS)                                                                 \
            rw_abort(1, rw_last_error());                                                         \
    } while (0)

/* One iteration over `rows` rows; the row before them and the one behind are there, too. */
static void iterate(const double *from, double *to, int rows)
{
    int row, column;
    for (row = 1; row <= rows; row++)
        for (column = 1; column <= INNER; column++) {
            const double *at = from + row * WIDTH + column;
            to[row * WIDTH + column] = 0.25 * (at[-WIDTH] + at[WIDTH] + at[-1] + at[1]);
        }
}

static void heat(double *edge)
{
    int column;
    for (column = 0; column < WIDTH; column++)
        edge[column] = 1.0;
}

/* What one process computes. */
static double *serial(void)
{
    double *grids = calloc(2 * WIDTH * WIDTH, sizeof *grids);
    int iteration;
    if (grids == NULL)
        return NULL;
    heat(grids);
    heat(grids + WIDTH * WIDTH);
    for (iteration = 0; iteration < ITERATIONS; iteration++)
        iterate(grids + iteration % 2 * WIDTH * WIDTH, grids + (iteration + 1) % 2 * WIDTH * WIDTH, INNER);
    return grids;
}

int main(void)
{
    int rank, size, first, rows, grid, iteration, same;
    double *grids, *wanted;
    rw_win win;
    CALL(rw_init());
    CALL(rw_rank(&rank));
    CALL(rw_size(&size));
    first = rank * INNER / size;
    rows = (rank + 1) * INNER / size - first;
    if (size > INNER)
        rw_abort(1, "there are more ranks than rows");

    /* Two grids, of which one is made of the other in turn; in each, the neighbours' rows lie around the own ones. */
    grid = (rows + 2) * WIDTH;
    CALL(rw_win_allocate((rw_aint)(2 * (size_t)grid * sizeof(double)), sizeof(double), "no_locks=true;name=jacobi",
                         &grids, &win));
    if (rank == 0) {
        heat(grids);
        heat(grids + grid);
    }
    CALL(rw_win_fence(RW_MODE_NOPRECEDE, win));
    for (iteration = 0; iteration < ITERATIONS; iteration++) {
        int into = (iteration + 1) % 2;
        double *to = grids + into * grid;
        iterate(grids + iteration % 2 * grid, to, rows);
        if (rank > 0) {
            /* Behind the last row of the rank above. */
            int above = first - (rank - 1) * INNER / size;
            CALL(rw_put(to + WIDTH, WIDTH, RW_DOUBLE, rank - 1, into * (above + 2) * WIDTH + (above + 1) * WIDTH,
                        WIDTH, RW_DOUBLE, win));
        }
        if (rank < size - 1) {
            /* Before the first row of the rank below. */
            int below = (rank + 2) * INNER / size - (rank + 1) * INNER / size;
            CALL(rw_put(to + rows * WIDTH, WIDTH, RW_DOUBLE, rank + 1, into * (below + 2) * WIDTH, WIDTH, RW_DOUBLE,
                        win));
        }
        CALL(rw_win_fence(0, win));
    }

    wanted = serial();
    if (wanted == NULL)
        rw_abort(1, "there is no memory");
    same = memcmp(grids + ITERATIONS % 2 * grid + WIDTH,
                  wanted + ITERATIONS % 2 * WIDTH * WIDTH + (first + 1) * WIDTH,
                  (size_t)rows * WIDTH * sizeof(double)) == 0;
    if (!same)
        rw_abort(1, "the grid is not that of one process");
    free(wanted);
    CALL(rw_win_free(&win));
    CALL(rw_finalize());
    printf("jacobi: rank %d of %d has what one process computes\n", rank, size);
    return 0;
}
