/* BMI beside MPI in one program: MPI starts the ranks, carries URLs, holds barriers and sums up; what the
 * ranks exchange goes through BMI, over both of its modules. Usage: with_mpi tcp|shm
 */
#include "check.h"
#include <mpi.h>

#define ROUNDS 20
#define BYTES_MAX 1000000
#define RANKS_MAX 16
#define URL_MAX 256

static bmi_size_t length_of(int round)
{
    return round % 3 == 0 ? (bmi_size_t)round * 50000 : (bmi_size_t)round * 97 + 1;
}

static unsigned char byte_of(int from, int to, int round, bmi_size_t at)
{
    return (unsigned char)(from * 31 + to * 17 + round * 7 + at % 251);
}

/* Everybody to everybody, itself included, in each round; the number of bytes that arrived. */
static long long exchange(const BMI_addr_t *peers, int rank, int ranks, bmi_context_id context)
{
    static unsigned char out[RANKS_MAX][BYTES_MAX], in[RANKS_MAX][BYTES_MAX];
    long long total = 0;
    int round, other;
    for (round = 0; round < ROUNDS; round++) {
        bmi_op_id_t sends[RANKS_MAX], receives[RANKS_MAX];
        int sent[RANKS_MAX], received[RANKS_MAX];
        bmi_size_t sizes[RANKS_MAX], length = length_of(round), at;
        for (other = 0; other < ranks; other++) {
            received[other] = BMI_post_recv(&receives[other], peers[other], in[other], BYTES_MAX,
                                            &sizes[other], BMI_EXT_ALLOC, round, NULL, context,
                                            NULL);
        }
        for (other = 0; other < ranks; other++) {
            for (at = 0; at < length; at++)
                out[other][at] = byte_of(rank, other, round, at);
            sent[other] = BMI_post_send(&sends[other], peers[other], out[other], length,
                                        BMI_EXT_ALLOC, round, NULL, context, NULL);
        }
        for (other = 0; other < ranks; other++) {
            CHECK(finish(received[other], receives[other], &sizes[other], context) == 0);
            CHECK(sizes[other] == length);
            for (at = 0; at < length; at++)
                CHECK(in[other][at] == byte_of(other, rank, round, at));
            total += sizes[other];
        }
        for (other = 0; other < ranks; other++)
            CHECK(finish(sent[other], sends[other], NULL, context) == 0);
        if (round % 5 == 0)
            CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    }
    return total;
}

int main(int argc, char **argv)
{
    char own[URL_MAX] = "", urls[RANKS_MAX][URL_MAX];
    BMI_addr_t peers[RANKS_MAX];
    bmi_context_id context;
    long long bytes, sum = 0, expected = 0;
    int rank = -1, ranks = 0, other, round;

    alarm(4 * HANG_SECONDS);
    CHECK(MPI_Init(&argc, &argv) == MPI_SUCCESS);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks > 1 && ranks <= RANKS_MAX);
    serve(argc > 1 ? argv[1] : "tcp", own, sizeof own);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(MPI_Allgather(own, URL_MAX, MPI_CHAR, urls, URL_MAX, MPI_CHAR, MPI_COMM_WORLD) ==
          MPI_SUCCESS);
    for (other = 0; other < ranks; other++)
        CHECK(BMI_addr_lookup(&peers[other], urls[other]) == 0);

    bytes = exchange(peers, rank, ranks, context);
    CHECK(MPI_Allreduce(&bytes, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
    for (round = 0; round < ROUNDS; round++)
        expected += (long long)length_of(round) * ranks * ranks;
    CHECK(sum == expected);
    /* Nobody leaves before all have everything. */
    CHECK(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    BMI_close_context(context);
    CHECK(BMI_finalize() == 0);
    CHECK(MPI_Finalize() == MPI_SUCCESS);
    if (rank == 0)
        printf("%d ranks, %lld bytes\nok\n", ranks, sum);
    return 0;
}
