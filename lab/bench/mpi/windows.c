/* The figures of the paper on one-sided communication, on MPI-3: what `ropewalk bench rma` stands beside.
 *
 *   windows PROGRAM allocate|create BYTES LOOPS ROUNDS
 *
 * PROGRAM is a name of lab/bench/src/rma/case.rs, and each does what its namesake in rma/programs.rs does. Memory
 * of windows comes from MPI_Win_allocate, or from the program (MPI_Win_create). At the end rank 0 prints
 *
 *   interface BYTES SEGMENTS   of the interface that WINDOWS_INTERFACE in the environment names (`lo` without it), both ways,
 *                          and of TCP, while it measured: on `lo` each byte once, and also those of other processes
 *   components NAME...     of Open MPI for windows (osc_...) and for messages (btl_...), as far as they are files that
 *                          rank 0 has loaded
 *   cpu NANOS NANOS        processor time of ranks 0 and 1, with their threads
 *   times NANOS...         of each round
 *
 * MPI is asked for MPI_THREAD_SINGLE, its fastest. Each rank binds its main thread to a core in turn; threads of an
 * MPI may run anywhere. WINDOWS_YIELD in the environment: ranks share cores, and tests that found nothing offer the
 * core to others.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum {
    OPERATIONS = 16,       /* of an epoch */
    WARM = 5,              /* rounds before the time begins */
    STRIDES = 1024,        /* pieces of a strided put, each as long as the gap behind it */
    COMPUTES = 20000000,   /* nanoseconds of a computation of the target */
    EARLY = 2000000,       /* of them, before the origin acts */
    COUNTS = 200000000,    /* nanoseconds of the fairness row */
    WORDS = 64,            /* behind the data of a window */
    TAG_END = 1,
    TAG_DATA = 2
};

static struct {
    const char *program;
    size_t bytes, room; /* of an operation; of a window before its words */
    uint64_t loops;
    int rounds, yields;
} the;

static int rank, ranks;
static MPI_Win window;
static MPI_Group rest; /* of rank 0 all others, of others rank 0 */
static MPI_Datatype strided;
static unsigned char *base, *data, *result;
static uint64_t *times;
static int measured; /* how many of them there are */
static volatile uint64_t sum;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void check(int good, const char *what)
{
    if (!good)
        fail(what);
}

static int is(const char *name) { return !strcmp(the.program, name); }

static int begins(const char *name) { return !strncmp(the.program, name, strlen(name)); }

static void *memory(size_t bytes)
{
    void *found = NULL;
    check(!posix_memalign(&found, 4096, bytes), "no memory");
    memset(found, 0, bytes);
    return found;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static double processor_nanos(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e9 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e3;
}

/* Word `word` of the `line`th line of a file that begins so, or 0. */
static uint64_t word_of(const char *file, const char *begin, int line, int word)
{
    char text[1024];
    uint64_t found = 0;
    FILE *opened = fopen(file, "r");
    while (opened && fgets(text, sizeof text, opened)) {
        char *left = NULL, *at = strtok_r(text, " ", &left);
        if (!at || strcmp(at, begin) || --line)
            continue;
        for (; at && word; word--)
            at = strtok_r(NULL, " ", &left);
        found = at ? strtoull(at, NULL, 10) : 0;
        break;
    }
    if (opened)
        fclose(opened);
    return found;
}

/* What came over rank 0's interface, and what left by it; of the loopback interface both are the same. */
static uint64_t interface_bytes(void)
{
    const char *name = getenv("WINDOWS_INTERFACE");
    char begin[64];
    snprintf(begin, sizeof begin, "%s:", name ? name : "lo");
    uint64_t came = word_of("/proc/net/dev", begin, 1, 1);
    return strcmp(begin, "lo:") ? came + word_of("/proc/net/dev", begin, 1, 9) : came;
}

/* Prints the name of each loaded component of Open MPI that begins so; a file has several mappings. */
static void print_components(const char *begin)
{
    char text[1024], last[256] = "", name[256];
    FILE *opened = fopen("/proc/self/maps", "r");
    while (opened && fgets(text, sizeof text, opened)) {
        char *at = strstr(text, "/mca_"), *end = at ? strstr(at, ".so") : NULL;
        if (!end || strncmp(at + 5, begin, strlen(begin)) || end - at - 5 >= (long)sizeof name)
            continue;
        *end = 0;
        strcpy(name, at + 5);
        if (strcmp(name, last))
            printf(" %s", name);
        strcpy(last, name);
    }
    if (opened)
        fclose(opened);
}

static uint64_t segments(void) { return word_of("/proc/net/snmp", "Tcp:", 2, 10); }

/* Nanoseconds of each round, without the first ones. */
static void rounds(void (*one)(void))
{
    for (int round = 0; round < WARM; round++)
        one();
    for (int round = 0; round < the.rounds; round++) {
        uint64_t begin = now();
        one();
        times[measured++] = now() - begin;
    }
}

static void compute(uint64_t increments)
{
    while (increments--)
        sum = sum + 1;
}

static void compute_for(uint64_t nanos)
{
    for (uint64_t begin = now(); now() - begin < nanos;)
        compute(1000);
}

static void put(int to)
{
    MPI_Put(data, (int)the.bytes, MPI_BYTE, to, 0, (int)the.bytes, MPI_BYTE, window);
}

static void post_and_wait(void)
{
    MPI_Win_post(rest, 0, window);
    if (rank == 0)
        compute(the.loops * 10000);
    if (!the.yields) {
        MPI_Win_wait(window);
        return;
    }
    for (int done = 0; !done;) {
        MPI_Win_test(window, &done);
        if (!done)
            sched_yield();
    }
}

/* Figure 5. */
static void latency(void)
{
    for (int origin = 0; origin < 2; origin++) {
        if (origin != rank) {
            post_and_wait();
            continue;
        }
        MPI_Win_start(rest, 0, window);
        put(1 - rank);
        MPI_Win_complete(window);
    }
}

/* Figure 6. */
static void bidirectional(void)
{
    put(1 - rank);
    MPI_Win_fence(0, window);
}

static void messages(void)
{
    MPI_Request both[2];
    MPI_Status each[2];
    int count = (int)the.bytes, other = 1 - rank;
    MPI_Irecv(result, count, MPI_BYTE, other, TAG_DATA, MPI_COMM_WORLD, &both[0]);
    MPI_Isend(data, count, MPI_BYTE, other, TAG_DATA, MPI_COMM_WORLD, &both[1]);
    MPI_Waitall(2, both, each);
}

/* Figures 7, 8 and 10: rank 0 is the origin. */
static void epochs(void)
{
    if (rank > 0) {
        post_and_wait();
        return;
    }
    MPI_Win_start(rest, 0, window);
    for (int i = 0; i < OPERATIONS; i++) {
        int count = (int)the.bytes;
        if (is("get"))
            MPI_Get(result, count, MPI_BYTE, 1, 0, count, MPI_BYTE, window);
        else
            put(1);
        compute(the.loops * 1000);
    }
    MPI_Win_complete(window);
}

/* Figure 9: rank 0 is the origin, all others are targets. */
static void targets(void)
{
    if (rank > 0) {
        post_and_wait();
        return;
    }
    MPI_Win_start(rest, 0, window);
    MPI_Win_complete(window);
}

/* Figures 9, 11 and 12: rank 0 is the target, all others are origins. */
static void origins(void)
{
    if (rank == 0) {
        post_and_wait();
        return;
    }
    MPI_Win_start(rest, 0, window);
    for (int i = 0; i < OPERATIONS && !begins("synchronisation"); i++)
        put(0);
    MPI_Win_complete(window);
}

/* The operation that stands behind the point of the program's name. */
static const char *act_name(void)
{
    const char *point = strchr(the.program, '.');
    return point ? point + 1 : the.program;
}

static void act(void)
{
    static const uint64_t nothing;
    const char *name = act_name();
    int count = (int)the.bytes, words = count / 8;
    if (!strcmp(name, "put") || !strcmp(name, "lock_put_unlock") || is("passive_put"))
        put(1);
    else if (!strcmp(name, "get"))
        MPI_Get(result, count, MPI_BYTE, 1, 0, count, MPI_BYTE, window);
    else if (!strcmp(name, "accumulate"))
        MPI_Accumulate(data, words, MPI_UINT64_T, 1, 0, words, MPI_UINT64_T, MPI_SUM, window);
    else if (!strcmp(name, "get_accumulate"))
        MPI_Get_accumulate(data, words, MPI_UINT64_T, result, words, MPI_UINT64_T, 1, 0, words,
                           MPI_UINT64_T, MPI_SUM, window);
    else if (!strcmp(name, "fetch_add"))
        MPI_Fetch_and_op(data, result, MPI_UINT64_T, 1, 0, MPI_SUM, window);
    else if (!strcmp(name, "compare_and_swap"))
        MPI_Compare_and_swap(&nothing, &nothing, result, MPI_UINT64_T, 1, 0, window);
    else if (!strcmp(name, "strided"))
        MPI_Put(data, count, MPI_BYTE, 1, 0, 1, strided, window);
    else
        fail("there is no such operation");
}

/* The program's operation, until it is done at the target. */
static void act_and_flush(void)
{
    int count = begins("flush16.") ? OPERATIONS : 1;
    if (!strcmp(act_name(), "lock_put_unlock")) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, window);
        act();
        MPI_Win_unlock(1, window);
        return;
    }
    for (int i = 0; i < count; i++)
        act();
    MPI_Win_flush(1, window);
}

/* Rank 1 waits in a call, until a message tells of the end. */
static void flush(void)
{
    if (rank == 0)
        rounds(act_and_flush);
    if (rank == 0)
        MPI_Send(NULL, 0, MPI_BYTE, 1, TAG_END, MPI_COMM_WORLD);
    else
        MPI_Recv(NULL, 0, MPI_BYTE, 0, TAG_END, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Rounds, between barriers, in which rank 1 computes for so long. Rank 0 acts a moment after it began. */
static void beside(uint64_t nanos, uint64_t early)
{
    for (int round = -WARM; round < the.rounds; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1) {
            compute_for(nanos);
            continue;
        }
        compute_for(early);
        uint64_t begin = now();
        act_and_flush();
        if (round >= 0)
            times[measured++] = now() - begin;
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Puts alone, then beside a computation that takes as long as one. */
static void passive_put(void)
{
    uint64_t alone = 0, *sorted = memory((size_t)the.rounds * sizeof *sorted);
    beside(0, 0);
    memcpy(sorted, times, (size_t)the.rounds * sizeof *sorted);
    qsort(sorted, (size_t)the.rounds, sizeof *sorted, ascending);
    alone = sorted[the.rounds / 2];
    free(sorted);
    MPI_Bcast(&alone, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    beside(alone, 0);
}

/* Rank 0 acts on rank 1 in an epoch of locks. */
static void passive(void)
{
    int opens = rank == 0 && strcmp(act_name(), "lock_put_unlock");
    if (opens)
        MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
    if (is("passive_put"))
        passive_put();
    else if (begins("computing."))
        beside(COMPUTES, EARLY);
    else
        flush();
    if (opens)
        MPI_Win_unlock(1, window);
}

/* Ranks above 0 count at rank 0. */
static uint64_t add(void)
{
    uint64_t one = 1, before = 0;
    MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, (MPI_Aint)the.room + 8, MPI_SUM, window);
    MPI_Win_flush(0, window);
    return before;
}

static void counter(void)
{
    uint64_t begin = now();
    MPI_Win_lock_all(0, window);
    for (int i = 0; rank > 0 && i < the.rounds; i++)
        add();
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    times[measured++] = (now() - begin) / (uint64_t)the.rounds;
    if (rank == 0) {
        uint64_t counted, wanted = (uint64_t)the.rounds * (uint64_t)(ranks - 1);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        memcpy(&counted, base + the.room + 8, sizeof counted);
        MPI_Win_unlock(0, window);
        check(counted == wanted, "the counter lost some");
    }
}

/* Jain's index, in thousandths. */
static void fairness(void)
{
    double count = 0, *counts = memory((size_t)ranks * sizeof *counts), all = 0, squares = 0;
    MPI_Win_lock_all(0, window);
    for (uint64_t begin = now(); rank > 0 && now() - begin < COUNTS; count++)
        add();
    MPI_Win_unlock_all(window);
    MPI_Gather(&count, 1, MPI_DOUBLE, counts, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int i = 1; i < ranks; i++) {
        all += counts[i];
        squares += counts[i] * counts[i];
    }
    double jain = squares > 0 ? all * all / ((ranks - 1) * squares) : 0;
    times[measured++] = (uint64_t)(jain * 1000);
    free(counts);
}

/* What puts and updates have to leave at rank 1. */
static void look(void)
{
    size_t last = the.bytes - 1;
    const char *name = act_name();
    if (!strcmp(name, "strided"))
        last = 2 * (the.bytes / STRIDES) * (STRIDES - 1) + the.bytes / STRIDES - 1;
    int puts = !strcmp(name, "put") || !strcmp(name, "strided") || is("latency") || is("passive_put") ||
               !strcmp(name, "lock_put_unlock");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1 && puts && the.bytes) {
        MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
        check(base[0] == 1 && base[last] == 1, "puts are not there");
        MPI_Win_unlock(1, window);
    }
    if (rank == 1 && !strcmp(name, "fetch_add")) {
        uint64_t found, each;
        uint64_t count = (uint64_t)(the.rounds + WARM) * (begins("flush16.") ? OPERATIONS : 1);
        MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
        memcpy(&found, base, sizeof found);
        MPI_Win_unlock(1, window);
        memcpy(&each, data, sizeof each);
        check(found == count * each, "updates are not there");
    }
}

static void run(int by_messages)
{
    if (by_messages) {
        rounds(messages);
    } else if (is("latency")) {
        rounds(latency);
        for (int i = 0; i < measured; i++)
            times[i] /= 2;
    } else if (is("bidirectional")) {
        MPI_Win_fence(0, window);
        rounds(bidirectional);
    } else if (is("put") || is("get") || is("overlap")) {
        rounds(epochs);
    } else if (is("synchronisation.targets")) {
        rounds(targets);
    } else if (is("synchronisation.origins") || is("origins") || is("skew")) {
        rounds(origins);
    } else if (begins("flush.") || begins("flush16.") || begins("computing.") || is("passive_put")) {
        passive();
    } else if (is("counter")) {
        counter();
    } else if (is("fairness")) {
        fairness();
    } else {
        fail("there is no such program");
    }
}

/* Binds the calling thread to the core that this rank has in turn. */
static void bind(void)
{
    cpu_set_t may, own;
    CPU_ZERO(&may);
    sched_getaffinity(0, sizeof may, &may);
    int turn = rank % (CPU_COUNT(&may) ? CPU_COUNT(&may) : 1);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &may) || turn--)
            continue;
        CPU_ZERO(&own);
        CPU_SET(core, &own);
        sched_setaffinity(0, sizeof own, &own);
        return;
    }
}

/* Makes the window, and what goes there and comes from there. */
static void prepare(const char *how)
{
    MPI_Group all;
    int zero = 0;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    if (rank == 0)
        MPI_Group_excl(all, 1, &zero, &rest);
    else
        MPI_Group_incl(all, 1, &zero, &rest);
    MPI_Group_free(&all);
    data = memory(the.bytes + 8);
    memset(data, 1, the.bytes + 8);
    result = memory(the.bytes + 8);
    times = memory(2 * (size_t)the.rounds * sizeof *times);
    int piece = (int)(the.bytes / STRIDES);
    MPI_Type_vector(STRIDES, piece, 2 * piece, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    size_t most = the.bytes < 64 ? 64 : the.bytes;
    the.room = (most * (strstr(the.program, "strided") ? 2 : 1) + 7) / 8 * 8;
    MPI_Aint bytes = (MPI_Aint)the.room + 8 * WORDS;
    if (!strcmp(how, "allocate")) {
        MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    } else {
        base = memory((size_t)bytes);
        MPI_Win_create(base, bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    }
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memset(base, 0, (size_t)bytes);
    MPI_Win_unlock(rank, window);
}

int main(int count, char **words)
{
    /* Whoever started this has to be alive: a rank that lost its peers would spin for ever. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(count == 6 && ranks > 1, "other arguments, or more ranks, are needed");
    bind();
    the.program = words[1];
    the.bytes = strtoull(words[3], NULL, 10);
    the.loops = strtoull(words[4], NULL, 10);
    the.rounds = atoi(words[5]);
    the.yields = getenv("WINDOWS_YIELD") != NULL;
    check(the.rounds > 0 && the.bytes < (1 << 30), "no rounds, or too many bytes");
    prepare(words[2]);
    MPI_Barrier(MPI_COMM_WORLD);
    uint64_t bytes = interface_bytes(), packets = segments();
    double used = processor_nanos(), all[2] = {0, 0};
    int by_messages = !strcmp(words[2], "messages");
    run(by_messages);
    bytes = interface_bytes() - bytes;
    packets = segments() - packets;
    used = processor_nanos() - used;
    if (rank == 1)
        MPI_Send(&used, 1, MPI_DOUBLE, 0, TAG_DATA, MPI_COMM_WORLD);
    if (rank == 0)
        MPI_Recv(&all[1], 1, MPI_DOUBLE, 1, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    all[0] = used;
    if (!by_messages)
        look();
    if (rank == 0) {
        printf("interface %llu %llu\n", (unsigned long long)bytes, (unsigned long long)packets);
        printf("components");
        print_components("osc_");
        print_components("btl_");
        printf("\n");
        printf("cpu %.0f %.0f\ntimes", all[0], all[1]);
        for (int i = 0; i < measured; i++)
            printf(" %llu", (unsigned long long)times[i]);
        printf("\n");
        fflush(stdout);
    }
    MPI_Win_free(&window);
    MPI_Type_free(&strided);
    MPI_Group_free(&rest);
    MPI_Finalize();
    return 0;
}
