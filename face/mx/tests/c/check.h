/* What the test programs share: checks that end the program, and two sides that know of each other, as
 * processes of their own or as two endpoints of one.
 *
 * Media: "shm" (one board, shared memory), "udp" (a board each, nothing is shared), "ether" (likewise, on the
 * interfaces that the environment names, of which the second one may be in a network namespace of its own).
 */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <myriexpress.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s (process %d)\n", __FILE__, __LINE__, #condition,           \
                    (int)getpid());                                                               \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

#define OK(call) CHECK((call) == MX_SUCCESS)

#ifndef HANG_SECONDS
#define HANG_SECONDS 60
#endif
/* As a time-out: long enough to be believed. */
#define LONG (HANG_SECONDS * 1000)
#define ALL MX_MATCH_MASK_NONE
#define KEY 0x1234abcdU

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline void nap(int milliseconds)
{
    struct timespec time;
    time.tv_sec = milliseconds / 1000;
    time.tv_nsec = (long)(milliseconds % 1000) * 1000000;
    while (nanosleep(&time, &time) != 0 && errno == EINTR) {
    }
}

static inline unsigned char pattern(size_t at, unsigned seed)
{
    return (unsigned char)(at * 31 + (at >> 8) + seed);
}

static inline void fill(void *to, size_t bytes, unsigned seed)
{
    size_t at;
    for (at = 0; at < bytes; at++)
        ((unsigned char *)to)[at] = pattern(at, seed);
}

static inline int is_filled(const void *from, size_t bytes, unsigned seed)
{
    size_t at;
    for (at = 0; at < bytes; at++)
        if (((const unsigned char *)from)[at] != pattern(at, seed))
            return 0;
    return 1;
}

/* One side. */
struct side {
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
};

/* Names the boards of this process in the environment: `which` is 0 or 1. `base` is the same for both. */
static inline void choose_board(const char *medium, int base, int which)
{
    char boards[64], table[256], path[256];
    const char *folder = getenv("TMPDIR");
    FILE *file;
    CHECK(setenv("MX_ERRORS_ARE_FATAL", "0", 0) == 0);
    if (strcmp(medium, "ether") == 0) {
        /* Named by who made the interfaces. */
        const char *name = getenv(which == 0 ? "ETHER_ONE" : "ETHER_TWO");
        const char *elsewhere = which == 0 ? NULL : getenv("ETHER_TWO_NAMESPACE");
        if (elsewhere != NULL) {
            int namespace_file = open(elsewhere, O_RDONLY | O_CLOEXEC);
            CHECK(namespace_file >= 0 && setns(namespace_file, CLONE_NEWNET) == 0);
            close(namespace_file);
        }
        CHECK(name != NULL && setenv("ROPEWALK_MX_BOARDS", name, 1) == 0);
        CHECK(setenv("OMX_DISABLE_SHARED", "1", 1) == 0);
        return;
    }
    /* Each side has a file of its own: the other one may read while this one writes. */
    snprintf(path, sizeof path, "%s/mx-peers-%d-%d", folder == NULL ? "/tmp" : folder, base, which);
    if (strcmp(medium, "udp") == 0)
        CHECK(setenv("OMX_DISABLE_SHARED", "1", 1) == 0);
    else
        which = 0;
    snprintf(boards, sizeof boards, "udp://127.0.0.1:%d", base + 40 * which);
    snprintf(table, sizeof table, "one udp://127.0.0.1:%d\ntwo udp://127.0.0.1:%d # a comment\n", base,
             base + 40);
    file = fopen(path, "w");
    CHECK(file != NULL && fputs(table, file) >= 0 && fclose(file) == 0);
    CHECK(setenv("ROPEWALK_MX_BOARDS", boards, 1) == 0);
    CHECK(setenv("ROPEWALK_MX_PEERS", path, 1) == 0);
}

static inline int base_port(void)
{
    return 12000 + (int)(getpid() % 240) * 80;
}

/* Where an endpoint is, for the other side. */
struct place {
    uint64_t nic;
    uint32_t endpoint;
};

static inline struct place place_of(mx_endpoint_t endpoint)
{
    struct place place;
    mx_endpoint_addr_t own;
    OK(mx_get_endpoint_addr(endpoint, &own));
    OK(mx_decompose_endpoint_addr(own, &place.nic, &place.endpoint));
    return place;
}

static inline mx_endpoint_addr_t reach(mx_endpoint_t endpoint, struct place place)
{
    mx_endpoint_addr_t peer;
    mx_return_t code = MX_CONNECTION_FAILED;
    double start = now();
    /* The other side may open later. */
    while (code == MX_CONNECTION_FAILED && now() - start < HANG_SECONDS) {
        code = mx_connect(endpoint, place.nic, place.endpoint, KEY, LONG, &peer);
        if (code == MX_CONNECTION_FAILED)
            nap(5);
    }
    OK(code);
    return peer;
}

static inline void talk(int from, int to, const void *say, void *hear, size_t bytes)
{
    CHECK(write(to, say, bytes) == (ssize_t)bytes);
    CHECK(read(from, hear, bytes) == (ssize_t)bytes);
}

/* Runs both sides, each with an endpoint that is connected to the other's; the second one in a child. */
static inline void both(const char *medium, mx_param_t *params, uint32_t count,
                        void (*first)(struct side), void (*second)(struct side))
{
    int up[2], down[2], base = base_port(), status = 0;
    struct place own, other;
    struct side side;
    pid_t child;
    int is_child;
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    child = fork();
    CHECK(child >= 0);
    is_child = child == 0;
    alarm(4 * HANG_SECONDS);
    choose_board(medium, base, is_child);
    OK(mx_init());
    OK(mx_open_endpoint(0, is_child ? 1 : 0, KEY, params, count, &side.endpoint));
    own = place_of(side.endpoint);
    CHECK(own.endpoint == (is_child ? 1U : 0U));
    talk(is_child ? down[0] : up[0], is_child ? up[1] : down[1], &own, &other, sizeof own);
    side.peer = reach(side.endpoint, other);
    (is_child ? second : first)(side);
    OK(mx_close_endpoint(side.endpoint));
    OK(mx_finalize());
    if (is_child)
        exit(0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline mx_segment_t segment(const void *buffer, size_t bytes)
{
    mx_segment_t segment;
    segment.segment_ptr = (void *)(uintptr_t)buffer;
    segment.segment_length = (uint32_t)bytes;
    return segment;
}

static inline mx_request_t begin_send(struct side side, const void *buffer, size_t bytes,
                                      uint64_t match)
{
    mx_segment_t one = segment(buffer, bytes);
    mx_request_t request = NULL;
    OK(mx_isend(side.endpoint, &one, 1, side.peer, match, NULL, &request));
    CHECK(request != NULL);
    return request;
}

static inline mx_request_t begin_receive(struct side side, void *buffer, size_t bytes,
                                         uint64_t match, uint64_t mask)
{
    mx_segment_t one = segment(buffer, bytes);
    mx_request_t request = NULL;
    OK(mx_irecv(side.endpoint, &one, 1, match, mask, NULL, &request));
    CHECK(request != NULL);
    return request;
}

static inline mx_status_t finish(struct side side, mx_request_t request)
{
    mx_status_t status;
    uint32_t result = 0;
    memset(&status, 0xff, sizeof status);
    OK(mx_wait(side.endpoint, &request, LONG, &status, &result));
    CHECK(result == 1 && request == NULL);
    return status;
}

static inline void send_one(struct side side, const void *buffer, size_t bytes, uint64_t match)
{
    CHECK(finish(side, begin_send(side, buffer, bytes, match)).code == MX_STATUS_SUCCESS);
}

static inline mx_status_t receive_one(struct side side, void *buffer, size_t bytes, uint64_t match)
{
    return finish(side, begin_receive(side, buffer, bytes, match, ALL));
}

/* Both sides get here. */
#define MEETING 0x4d454554ULL
static inline void meet(struct side side)
{
    mx_request_t receive = begin_receive(side, NULL, 0, MEETING << 32, ALL);
    send_one(side, NULL, 0, MEETING << 32);
    CHECK(finish(side, receive).code == MX_STATUS_SUCCESS);
}

#endif
