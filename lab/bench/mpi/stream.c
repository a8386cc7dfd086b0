/* The stream of `ropewalk bench paths` on MPI: rank 0 sends, rank 1 receives.
 *
 *   stream UNTIL FILE    messages until UNTIL, nanoseconds of the monotonic clock
 *
 * Rank 1 appends to FILE, for each message in order, the nanosecond at which it was complete, as 8 bytes in the
 * machine's order, and 0 after the last one. So what came is known although ranks hang. Each message carries its
 * number in its first 8 bytes, and in the next 8 whether it is the last one. DEPTH of them are under way.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { BYTES = 64 << 10, DEPTH = 16 };

static unsigned char buffers[DEPTH][BYTES];
static MPI_Request requests[DEPTH];
/* Read from here, since compilers take MPICH's constant for an array without room. */
static MPI_Status *volatile no_statuses = MPI_STATUSES_IGNORE;

static void fail(const char *what)
{
    fprintf(stderr, "stream: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void post_receive(int place)
{
    MPI_Irecv(buffers[place], BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[place]);
}

static void pour(uint64_t until)
{
    for (uint64_t number = 0;; number++) {
        int place = number % DEPTH;
        if (number >= DEPTH)
            MPI_Wait(&requests[place], MPI_STATUS_IGNORE);
        uint64_t head[2] = {number, now() >= until};
        memcpy(buffers[place], head, sizeof head);
        MPI_Isend(buffers[place], BYTES, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[place]);
        if (head[1]) {
            int count = number + 1 < DEPTH ? (int)number + 1 : DEPTH;
            MPI_Waitall(count, requests, no_statuses);
            return;
        }
    }
}

static void drink(const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        fail("cannot write the file");
    for (int place = 0; place < DEPTH; place++)
        post_receive(place);
    for (uint64_t number = 0;; number++) {
        int place = number % DEPTH;
        uint64_t head[2];
        MPI_Wait(&requests[place], MPI_STATUS_IGNORE);
        memcpy(head, buffers[place], sizeof head);
        if (head[0] != number)
            fail("a message is out of order");
        uint64_t time = now();
        fwrite(&time, sizeof time, 1, file);
        if (head[1]) {
            time = 0;
            fwrite(&time, sizeof time, 1, file);
        }
        fflush(file);
        if (head[1])
            break;
        post_receive(place);
    }
    fclose(file);
    for (int place = 0; place < DEPTH; place++)
        if (requests[place] != MPI_REQUEST_NULL) {
            MPI_Cancel(&requests[place]);
            MPI_Request_free(&requests[place]);
        }
}

int main(int count, char **words)
{
    int rank;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (count != 3)
        fail("which end, and which file?");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        pour(strtoull(words[1], NULL, 10));
    else
        drink(words[2]);
    MPI_Finalize();
    return 0;
}
