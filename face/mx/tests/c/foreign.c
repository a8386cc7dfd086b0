/* What hosts that speak MXoE say of their endpoints, and what is noticed of those that say nothing any more.
   usage: foreign MEDIUM */
#include "check.h"

static unsigned char buffer[200000];

/* The other side's second endpoint. */
#define SECOND 2U
#define ROUNDS 30

static mx_status_t send_synchronously(struct side side, mx_endpoint_addr_t to)
{
    mx_segment_t one = segment(buffer, 100);
    mx_request_t request = NULL;
    OK(mx_issend(side.endpoint, &one, 1, to, 0x81, NULL, &request));
    return finish(side, request);
}

/* Connecting takes no longer than an answer does; a partner that was forgotten is met again at once. */
static void again_and_again(struct side side, struct place second)
{
    double start = now();
    for (int round = 0; round < ROUNDS; round++) {
        mx_endpoint_addr_t peer = reach(side.endpoint, second);
        CHECK(send_synchronously(side, peer).code == MX_STATUS_SUCCESS);
        OK(mx_disconnect(side.endpoint, peer));
    }
    CHECK(now() - start < HANG_SECONDS);
}

static void first(struct side side)
{
    struct place second;
    mx_endpoint_addr_t peer;
    mx_status_t status;
    OK(mx_decompose_endpoint_addr(side.peer, &second.nic, &second.endpoint));
    second.endpoint = SECOND;
    meet(side);
    again_and_again(side, second);
    /* It is closed: its host says so. */
    peer = reach(side.endpoint, second);
    meet(side);
    meet(side);
    status = send_synchronously(side, peer);
    CHECK(status.code == MX_STATUS_ENDPOINT_CLOSED);
    CHECK(mx_connect(side.endpoint, second.nic, SECOND, KEY, LONG, &peer) == MX_CONNECTION_FAILED);
    /* It is another one. */
    meet(side);
    meet(side);
    peer = reach(side.endpoint, second);
    CHECK(send_synchronously(side, peer).code == MX_STATUS_SUCCESS);
    meet(side);
    meet(side);
    status = send_synchronously(side, peer);
    CHECK(status.code == MX_STATUS_BAD_SESSION);
    meet(side);
}

/* It takes some messages without any call. */
static mx_endpoint_t open_second(void)
{
    struct side side;
    OK(mx_open_endpoint(0, SECOND, KEY, NULL, 0, &side.endpoint));
    for (int number = 0; number < 2 * ROUNDS; number++)
        begin_receive(side, buffer, sizeof buffer, 0, 0);
    return side.endpoint;
}

static void second(struct side side)
{
    mx_endpoint_t second = open_second();
    meet(side);
    meet(side);
    OK(mx_close_endpoint(second));
    meet(side);
    meet(side);
    second = open_second();
    meet(side);
    meet(side);
    OK(mx_close_endpoint(second));
    second = open_second();
    meet(side);
    meet(side);
    OK(mx_close_endpoint(second));
}

/* A process is killed, and nobody is left on its card: who waits for it does so no longer than it says. */
static void killed(const char *medium)
{
    int up[2], base = base_port(), word = 0;
    struct place other;
    struct side side;
    mx_endpoint_addr_t peer;
    mx_request_t request;
    mx_segment_t one = segment(buffer, sizeof buffer);
    double start;
    pid_t child;
    CHECK(pipe(up) == 0);
    child = fork();
    CHECK(child >= 0);
    alarm(4 * HANG_SECONDS);
    /* 8 s, instead of 512. */
    CHECK(setenv("OMX_RESENDS_MAX", "16", 1) == 0);
    choose_board(medium, base, child == 0);
    OK(mx_init());
    OK(mx_open_endpoint(0, child == 0, KEY, NULL, 0, &side.endpoint));
    if (child == 0) {
        other = place_of(side.endpoint);
        CHECK(write(up[1], &other, sizeof other) == (ssize_t)sizeof other);
        for (;;)
            pause();
    }
    CHECK(read(up[0], &other, sizeof other) == (ssize_t)sizeof other);
    side.peer = reach(side.endpoint, other);
    send_one(side, buffer, 4, 0x91);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &word, 0) == child);
    start = now();
    CHECK(mx_connect(side.endpoint, other.nic, 1, KEY, 300, &peer) == MX_TIMEOUT);
    /* Each of them left, and is acknowledged by nobody. */
    OK(mx_issend(side.endpoint, &one, 1, side.peer, 0x92, NULL, &request));
    OK(mx_set_request_timeout(side.endpoint, request, 300));
    CHECK(finish(side, request).code == MX_STATUS_TIMEOUT);
    OK(mx_set_request_timeout(side.endpoint, NULL, 300));
    one = segment(buffer, 100);
    OK(mx_issend(side.endpoint, &one, 1, side.peer, 0x93, NULL, &request));
    CHECK(finish(side, request).code == MX_STATUS_TIMEOUT);
    /* Without a time of its own a message waits for as long as a host may be silent. */
    OK(mx_set_request_timeout(side.endpoint, NULL, 0));
    OK(mx_issend(side.endpoint, &one, 1, side.peer, 0x94, NULL, &request));
    CHECK(finish(side, request).code == MX_STATUS_ENDPOINT_UNREACHABLE);
    CHECK(now() - start < HANG_SECONDS);
    OK(mx_close_endpoint(side.endpoint));
    OK(mx_finalize());
}

int main(int count, char **words)
{
    pid_t child;
    int status = 0;
    CHECK(count == 2);
    /* With a library of its own. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        killed(words[1]);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
