/* The message figures of the BMI paper, on MPI: what `ropewalk bench bmi` stands beside.
 *
 *   figures latency ROUNDS BYTES...             2 ranks; times of round trips
 *   figures bandwidth TOTAL pre|late BYTES...   2 ranks; TOTAL bytes one way, all posted at once
 *   figures pattern SERVERS SECONDS             servers and clients of parallel I/O
 *
 * Calls of MPI-2 only. Every receive is posted with MPI_Irecv, every completion is found with
 * MPI_Testsome: the paper's two libraries were used alike. MPI is asked for MPI_THREAD_MULTIPLE, since
 * ours may always be called by several threads. Rank 0 prints one line a result.
 *
 * In the pattern a client posts, for each server in turn, the receive of an acknowledgement and those of
 * all 40 messages of data, each of 4 pieces apart, and sends its request. A server that finds a request
 * sends the acknowledgement and posts all 40 messages at once; it serves all its clients side by side.
 * Ours does the same, but asks all servers before it posts the receives of data.
 *
 * Of every piece of data the first and the last byte are checked and then wiped, so that stale bytes
 * never pass for new ones. FIGURES_YIELD in the environment: ranks share cores, and one that found
 * nothing complete offers its core to others.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum {
    FRONT = 64,               /* requests that one test looks at */
    AREA_MAX = 512 << 20,     /* bytes of buffers; beyond that, messages share them */
    MESSAGES_MAX = 1 << 22,   /* requests posted at once */
    REQUEST = 25,             /* bytes of a client's request */
    ACKNOWLEDGEMENT = 400,    /* bytes of its answer */
    PIECE = 64 << 10,         /* contiguous bytes where data lands */
    PIECES = 4,               /* of one message */
    MESSAGE = PIECES * PIECE, /* bytes of one message of data */
    MESSAGES = 40,            /* of data, for each client from each server: 10 MiB */
    SLOTS = MESSAGES + 2,     /* requests of a pair: the data, and one each way before it */
    FLOW = MESSAGE * MESSAGES /* bytes of data of a pair */
};

enum tag { TAG_DATA = 1, TAG_BACK, TAG_REQUEST, TAG_ACKNOWLEDGEMENT };

static int rank, ranks, yields;
/* Read from here, since compilers take MPICH's constant for an array without room. */
static MPI_Status *volatile no_statuses = MPI_STATUSES_IGNORE;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void *memory(size_t bytes)
{
    void *found = malloc(bytes ? bytes : 1);
    if (!found)
        fail("no memory");
    /* Its pages come now, not while something is timed. */
    memset(found, 0xff, bytes);
    return found;
}

static MPI_Request *no_requests(size_t count)
{
    MPI_Request *requests = memory(count * sizeof *requests);
    for (size_t i = 0; i < count; i++)
        requests[i] = MPI_REQUEST_NULL;
    return requests;
}

/* The same clock in all processes of a machine. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double processor_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* At rank 0 all ranks' values as one. */
static double gather(double mine, MPI_Op how)
{
    double all = 0;
    MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, how, 0, MPI_COMM_WORLD);
    return all;
}

/* One test of these requests; how many completed, and which. */
static int tested(MPI_Request *requests, int count, int *which)
{
    int done = 0;
    MPI_Testsome(count, requests, &done, which, no_statuses);
    if (done == MPI_UNDEFINED)
        return 0;
    if (done == 0 && yields)
        sched_yield();
    return done;
}

/* Tests until all are complete, the earliest first: a test costs the same however many there are. */
static void complete(MPI_Request *requests, size_t count)
{
    int which[FRONT];
    for (size_t first = 0; first < count;) {
        if (requests[first] == MPI_REQUEST_NULL) {
            first++;
            continue;
        }
        size_t left = count - first;
        tested(requests + first, left < FRONT ? (int)left : FRONT, which);
    }
}

static unsigned char mark(size_t number) { return (unsigned char)(1 + number % 250); }

static void stamp(unsigned char *piece, size_t bytes, size_t number)
{
    if (bytes)
        piece[0] = piece[bytes - 1] = mark(number);
}

static void take(unsigned char *piece, size_t bytes, size_t number)
{
    if (!bytes)
        return;
    if (piece[0] != mark(number) || piece[bytes - 1] != mark(number))
        fail("wrong data");
    piece[0] = piece[bytes - 1] = 0;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Sorts, and finds the one below which this part of all is. */
static double quantile(double *values, size_t count, double part)
{
    qsort(values, count, sizeof *values, ascending);
    return values[(size_t)((double)(count - 1) * part)];
}

static size_t number(const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end)
        fail("an argument is no number");
    return value;
}

/* Figure 3. */

static void ping(unsigned char *out, unsigned char *in, int bytes, size_t rounds, double *times)
{
    MPI_Request both[2];
    for (size_t round = 0; round < rounds; round++) {
        stamp(out, (size_t)bytes, round);
        double begin = now();
        MPI_Irecv(in, bytes, MPI_BYTE, 1, TAG_BACK, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(out, bytes, MPI_BYTE, 1, TAG_DATA, MPI_COMM_WORLD, &both[1]);
        complete(both, 2);
        times[round] = now() - begin;
        take(in, (size_t)bytes, round);
    }
}

static void pong(unsigned char *out, unsigned char *in, int bytes, size_t rounds)
{
    MPI_Request receive, send;
    MPI_Irecv(in, bytes, MPI_BYTE, 0, TAG_DATA, MPI_COMM_WORLD, &receive);
    for (size_t round = 0; round < rounds; round++) {
        complete(&receive, 1);
        take(in, (size_t)bytes, round);
        stamp(out, (size_t)bytes, round);
        /* The next one finds its receive posted. */
        if (round + 1 < rounds)
            MPI_Irecv(in, bytes, MPI_BYTE, 0, TAG_DATA, MPI_COMM_WORLD, &receive);
        MPI_Isend(out, bytes, MPI_BYTE, 0, TAG_BACK, MPI_COMM_WORLD, &send);
        complete(&send, 1);
    }
}

static double round_trips(unsigned char *out, unsigned char *in, int bytes, size_t rounds,
                          double *times)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double used = processor_seconds();
    if (rank == 0)
        ping(out, in, bytes, rounds, times);
    else
        pong(out, in, bytes, rounds);
    return gather(processor_seconds() - used, MPI_SUM);
}

static void latency(size_t rounds, size_t bytes)
{
    unsigned char *out = memory(bytes), *in = memory(bytes);
    double *times = memory(rounds * sizeof *times);
    round_trips(out, in, (int)bytes, rounds < 20 ? rounds : rounds / 10 + 10, times);
    double used = round_trips(out, in, (int)bytes, rounds, times);
    if (rank == 0) {
        double tail = quantile(times, rounds, 0.99);
        printf("latency %zu %.3f %.3f %.3f\n", bytes, quantile(times, rounds, 0.5) * 1e6,
               tail * 1e6, used * 1e6 / (2.0 * (double)rounds));
    }
    free(out);
    free(in);
    free(times);
}

/* Figure 4. */

struct stream {
    unsigned char *area;
    MPI_Request *requests;
    size_t count, bytes, buffers;
};

static unsigned char *buffer(const struct stream *stream, size_t message)
{
    return stream->area + message % stream->buffers * stream->bytes;
}

/* Seconds from the first post until the receiver told that it has all. */
static double push(const struct stream *stream, int late)
{
    for (size_t i = 0; i < stream->buffers; i++)
        stamp(buffer(stream, i), stream->bytes, i);
    unsigned char told = 0;
    MPI_Request back;
    MPI_Irecv(&told, 1, MPI_BYTE, 1, TAG_BACK, MPI_COMM_WORLD, &back);
    if (!late)
        MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    for (size_t i = 0; i < stream->count; i++)
        MPI_Isend(buffer(stream, i), (int)stream->bytes, MPI_BYTE, 1, TAG_DATA, MPI_COMM_WORLD,
                  &stream->requests[i]);
    if (late)
        MPI_Barrier(MPI_COMM_WORLD);
    complete(stream->requests, stream->count);
    complete(&back, 1);
    double seconds = now() - begin;
    take(&told, 1, 0);
    return seconds;
}

static void pull(const struct stream *stream, int late)
{
    /* The sender comes to this barrier when it has posted everything. */
    if (late)
        MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < stream->count; i++)
        MPI_Irecv(buffer(stream, i), (int)stream->bytes, MPI_BYTE, 0, TAG_DATA, MPI_COMM_WORLD,
                  &stream->requests[i]);
    if (!late)
        MPI_Barrier(MPI_COMM_WORLD);
    complete(stream->requests, stream->count);
    unsigned char told = mark(0);
    MPI_Request back;
    MPI_Isend(&told, 1, MPI_BYTE, 0, TAG_BACK, MPI_COMM_WORLD, &back);
    complete(&back, 1);
    size_t used = stream->count < stream->buffers ? stream->count : stream->buffers;
    for (size_t i = 0; i < used; i++)
        take(buffer(stream, i), stream->bytes, i);
}

static double streamed(const struct stream *stream, int late, double *used)
{
    double seconds = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = processor_seconds();
    if (rank == 0)
        seconds = push(stream, late);
    else
        pull(stream, late);
    *used = gather(processor_seconds() - begin, MPI_SUM);
    return seconds;
}

static void bandwidth(size_t total, int late, size_t bytes)
{
    if (bytes == 0)
        fail("a stream of nothing");
    size_t count = total / bytes ? total / bytes : 1;
    if (count > MESSAGES_MAX)
        fail("too many messages");
    size_t room = AREA_MAX / bytes ? AREA_MAX / bytes : 1;
    struct stream stream = {.count = count, .bytes = bytes, .buffers = count < room ? count : room};
    stream.area = memory(stream.buffers * bytes);
    stream.requests = no_requests(count);
    struct stream few = stream;
    few.count = count < FRONT ? count : FRONT;
    double used;
    streamed(&few, late, &used);
    double seconds = streamed(&stream, late, &used), moved = (double)count * (double)bytes;
    if (rank == 0)
        printf("bandwidth %zu %.3f %.4f\n", bytes, moved / seconds / 1e6, used / (moved / 1e9));
    free(stream.area);
    free(stream.requests);
}

/* Figure 5. Servers are the first ranks; peers are numbered from 0 on either side. */

struct side {
    int servers, clients;
    unsigned char *area;         /* of a server: the data; of a client: FLOW for each server */
    unsigned char (*requests)[REQUEST];
    unsigned char (*acknowledgements)[ACKNOWLEDGEMENT];
    MPI_Request *posted;         /* SLOTS for each peer */
    int *which;
    MPI_Datatype scattered;      /* one message as it lands */
};

static void prepare(struct side *side, int servers)
{
    side->servers = servers;
    side->clients = ranks - servers;
    int serving = rank < servers;
    size_t peers = (size_t)(serving ? side->clients : servers);
    side->area = memory((serving ? 1 : peers) * FLOW);
    if (serving)
        for (size_t i = 0; i < MESSAGES * PIECES; i++)
            stamp(side->area + i * PIECE, PIECE, (size_t)rank + i);
    side->requests = memory(peers * sizeof *side->requests);
    side->acknowledgements = memory(peers * sizeof *side->acknowledgements);
    side->posted = no_requests(peers * SLOTS);
    side->which = memory(peers * SLOTS * sizeof *side->which);
    /* The first pieces of all messages, then the second ones: no two of a message are neighbours. */
    MPI_Type_create_hvector(PIECES, PIECE, (MPI_Aint)MESSAGES * PIECE, MPI_BYTE, &side->scattered);
    MPI_Type_commit(&side->scattered);
}

/* Posts all messages to or from a peer: the first of its slots are theirs. */
static void post_messages(struct side *side, size_t peer)
{
    for (size_t message = 0; message < MESSAGES; message++) {
        MPI_Request *posted = &side->posted[peer * SLOTS + message];
        if (rank < side->servers)
            MPI_Isend(side->area + message * MESSAGE, MESSAGE, MPI_BYTE, side->servers + (int)peer,
                      TAG_DATA, MPI_COMM_WORLD, posted);
        else
            MPI_Irecv(side->area + peer * FLOW + message * PIECE, 1, side->scattered, (int)peer,
                      TAG_DATA, MPI_COMM_WORLD, posted);
    }
}

/* Takes a request, where one is there, and begins to serve it; how many it took. */
static int accept_request(struct side *side)
{
    int found = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, TAG_REQUEST, MPI_COMM_WORLD, &found, &status);
    if (!found)
        return 0;
    int client = status.MPI_SOURCE - side->servers;
    size_t peer = (size_t)client;
    MPI_Recv(side->requests[peer], REQUEST, MPI_BYTE, status.MPI_SOURCE, TAG_REQUEST,
             MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    take(side->requests[peer], REQUEST, peer);
    stamp(side->acknowledgements[peer], ACKNOWLEDGEMENT, (size_t)rank);
    MPI_Isend(side->acknowledgements[peer], ACKNOWLEDGEMENT, MPI_BYTE, status.MPI_SOURCE,
              TAG_ACKNOWLEDGEMENT, MPI_COMM_WORLD, &side->posted[peer * SLOTS + MESSAGES]);
    post_messages(side, peer);
    return 1;
}

static void serve(struct side *side)
{
    int count = side->clients * SLOTS, waiting = side->clients;
    for (size_t left = (size_t)side->clients * (MESSAGES + 1); left;) {
        if (waiting)
            waiting -= accept_request(side);
        left -= (size_t)tested(side->posted, count, side->which);
    }
}

static void ask(struct side *side, size_t server)
{
    MPI_Request *posted = &side->posted[server * SLOTS];
    MPI_Irecv(side->acknowledgements[server], ACKNOWLEDGEMENT, MPI_BYTE, (int)server,
              TAG_ACKNOWLEDGEMENT, MPI_COMM_WORLD, &posted[MESSAGES]);
    post_messages(side, server);
    stamp(side->requests[server], REQUEST, (size_t)(rank - side->servers));
    MPI_Isend(side->requests[server], REQUEST, MPI_BYTE, (int)server, TAG_REQUEST, MPI_COMM_WORLD,
              &posted[MESSAGES + 1]);
}

static void landed(struct side *side, size_t server, size_t slot)
{
    if (slot == MESSAGES)
        take(side->acknowledgements[server], ACKNOWLEDGEMENT, server);
    if (slot >= MESSAGES)
        return;
    unsigned char *first = side->area + server * FLOW + slot * PIECE;
    for (size_t piece = 0; piece < PIECES; piece++)
        take(first + piece * MESSAGES * PIECE, PIECE, server + slot * PIECES + piece);
}

static void fetch(struct side *side)
{
    size_t servers = (size_t)side->servers;
    for (size_t server = 0; server < servers; server++)
        ask(side, server);
    for (size_t left = servers * (MESSAGES + 2); left;) {
        int done = tested(side->posted, side->servers * SLOTS, side->which);
        left -= (size_t)done;
        for (int i = 0; i < done; i++)
            landed(side, (size_t)side->which[i] / SLOTS, (size_t)side->which[i] % SLOTS);
    }
}

/* Seconds, at rank 0, from the first client's begin to the last one's end. */
static double repeat(struct side *side, double *used)
{
    int serving = rank < side->servers;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now(), spent = processor_seconds();
    if (serving)
        serve(side);
    else
        fetch(side);
    double end = now();
    *used += gather(processor_seconds() - spent, MPI_SUM);
    double first = gather(serving ? 1e18 : begin, MPI_MIN);
    return gather(serving ? 0 : end, MPI_MAX) - first;
}

static void pattern(int servers, double seconds)
{
    enum { REPEATS_MAX = 100000 };
    if (servers < 1 || servers >= ranks)
        fail("no servers, or no clients");
    struct side side;
    prepare(&side, servers);
    double used = 0, *times = memory(REPEATS_MAX * sizeof *times);
    /* Connections and caches come with the first. */
    repeat(&side, &used);
    used = 0;
    size_t repeats = 0;
    double end = now() + seconds;
    for (int more = 1; more; repeats++) {
        times[repeats] = repeat(&side, &used);
        more = now() < end && repeats + 1 < REPEATS_MAX;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank == 0) {
        double moved = (double)side.servers * (double)side.clients * FLOW;
        double typical = quantile(times, repeats, 0.5);
        printf("pattern %.3f %.4f %zu\n", moved / typical / 1e6,
               used / (moved * (double)repeats / 1e9), repeats);
    }
    MPI_Type_free(&side.scattered);
}

int main(int count, char **words)
{
    /* Whoever started this has to be alive: a rank that lost its peers would spin for ever. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int level;
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && level < MPI_THREAD_MULTIPLE)
        fprintf(stderr, "this MPI has threads of level %d only, of %d\n", level, MPI_THREAD_MULTIPLE);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    yields = getenv("FIGURES_YIELD") != NULL;
    if (count > 3 && ranks == 2 && !strcmp(words[1], "latency")) {
        size_t rounds = number(words[2]);
        for (int i = 3; i < count; i++)
            latency(rounds ? rounds : 1, number(words[i]));
    } else if (count > 4 && ranks == 2 && !strcmp(words[1], "bandwidth")) {
        for (int i = 4; i < count; i++)
            bandwidth(number(words[2]), !strcmp(words[3], "late"), number(words[i]));
    } else if (count == 4 && !strcmp(words[1], "pattern")) {
        pattern((int)number(words[2]), strtod(words[3], NULL));
    } else {
        fail("other arguments, or another number of ranks, are needed");
    }
    MPI_Finalize();
    return 0;
}
