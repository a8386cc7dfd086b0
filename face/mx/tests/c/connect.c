/* Connecting and its failures; time-outs; peers that go. usage: connect MEDIUM */
#include "check.h"

static const char *medium;
static unsigned char buffer[300000];

/* Keys, numbers and cards that are wrong; from within `both`, where each side is connected already. */
static void refused(struct side side)
{
    struct place other;
    mx_endpoint_addr_t peer;
    mx_request_t request;
    mx_status_t status;
    uint32_t result = 7, session = 0;
    double start;
    OK(mx_decompose_endpoint_addr2(side.peer, &other.nic, &other.endpoint, &session));
    CHECK(other.endpoint == 1 && session != 0 && session != UINT32_MAX);
    CHECK(mx_connect(side.endpoint, other.nic, 1, KEY + 1, LONG, &peer) == MX_BAD_CONNECTION_KEY);
    OK(mx_iconnect(side.endpoint, other.nic, 1, KEY + 1, 0x55, &peer, &request));
    status = finish(side, request);
    CHECK(status.code == MX_STATUS_BAD_KEY && status.match_info == 0x55);
    CHECK(status.context == &peer);
    CHECK(mx_connect(side.endpoint, other.nic, 255, KEY, LONG, &peer) == MX_BAD_ENDPOINT_ID);
    CHECK(mx_connect(side.endpoint, 0x0300deadbeefULL, 1, KEY, LONG, &peer) == MX_NIC_NOT_FOUND);
    CHECK(mx_iconnect(side.endpoint, 0x0300deadbeefULL, 1, KEY, 0, NULL, &request) ==
          MX_NIC_NOT_FOUND);
    /* Nobody is there. Who could know it says so; over a wire it is silent. */
    start = now();
    if (strcmp(medium, "shm") == 0) {
        CHECK(mx_connect(side.endpoint, other.nic, 9, KEY, LONG, &peer) == MX_CONNECTION_FAILED);
        OK(mx_iconnect(side.endpoint, other.nic, 9, KEY, 0x56, NULL, &request));
        CHECK(finish(side, request).code == MX_STATUS_ENDPOINT_CLOSED);
    } else {
        CHECK(mx_connect(side.endpoint, other.nic, 9, KEY, 300, &peer) == MX_TIMEOUT);
        CHECK(now() - start >= 0.29);
        OK(mx_iconnect(side.endpoint, other.nic, 9, KEY, 0x56, NULL, &request));
        OK(mx_set_request_timeout(side.endpoint, request, 100));
        CHECK(finish(side, request).code == MX_STATUS_TIMEOUT);
        OK(mx_iconnect(side.endpoint, other.nic, 9, KEY, 0x56, NULL, &request));
        OK(mx_cancel(side.endpoint, &request, &result));
        CHECK(result == 1 && request == NULL);
    }
    CHECK(now() - start < HANG_SECONDS);
    /* Again, and as a request: the same partner, with the same pointer of ours. */
    OK(mx_set_endpoint_addr_context(side.peer, &medium));
    OK(mx_connect(side.endpoint, other.nic, 1, KEY, LONG, &peer));
    CHECK(memcmp(&peer, &side.peer, sizeof peer) == 0);
    OK(mx_iconnect(side.endpoint, other.nic, 1, KEY, 0x57, &peer, &request));
    OK(mx_wait_any(side.endpoint, LONG, 0x57, ALL, &status, &result));
    CHECK(result == 1 && status.code == MX_STATUS_SUCCESS && status.context == &peer);
    CHECK(memcmp(&status.source, &side.peer, sizeof peer) == 0);
}

/* Waits for a side that it does not hear: woken by a thread of nobody's, but in time. */
static void time_outs(struct side side)
{
    mx_request_t request = begin_receive(side, buffer, 4, 0x5555, ALL);
    mx_status_t status;
    uint32_t result = 7;
    double start = now();
    OK(mx_wait(side.endpoint, &request, 60, &status, &result));
    CHECK(result == 0 && request != NULL && now() - start >= 0.055);
    OK(mx_cancel(side.endpoint, &request, &result));
    CHECK(result == 1);
}

/* The other side says goodbye to us, and connects again. */
static void disconnected(struct side side)
{
    mx_request_t request, large;
    mx_status_t status;
    mx_endpoint_addr_t old = side.peer;
    struct place other;
    uint32_t result = 7;
    OK(mx_decompose_endpoint_addr(side.peer, &other.nic, &other.endpoint));
    meet(side);
    /* Announced, and never received. */
    large = begin_send(side, buffer, sizeof buffer, 0x61);
    /* It sent us something that we have not received. */
    OK(mx_probe(side.endpoint, LONG, 0x62, ALL, &status, &result));
    CHECK(result == 1);
    OK(mx_disconnect(side.endpoint, side.peer));
    status = finish(side, large);
    CHECK(status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
    OK(mx_iprobe(side.endpoint, 0x62, ALL, &status, &result));
    CHECK(result == 0);
    CHECK(mx_isend(side.endpoint, NULL, 0, old, 1, NULL, &request) == MX_BAD_ENDPOINT);
    CHECK(mx_set_endpoint_addr_context(old, &old) == MX_BAD_ENDPOINT);
    side.peer = reach(side.endpoint, other);
    meet(side);
}

static void disconnecting(struct side side)
{
    mx_request_t request;
    mx_status_t status;
    struct place other;
    double start = now();
    OK(mx_decompose_endpoint_addr(side.peer, &other.nic, &other.endpoint));
    meet(side);
    send_one(side, "x", 1, 0x62);
    /* Sends fail, once each, when the other side has left, until it connects again. */
    do {
        mx_segment_t one = segment(buffer, 40000);
        OK(mx_issend(side.endpoint, &one, 1, side.peer, 0x63, NULL, &request));
        status = finish(side, request);
        CHECK(now() - start < HANG_SECONDS);
    } while (status.code == MX_STATUS_SUCCESS);
    CHECK(status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
    side.peer = reach(side.endpoint, other);
    meet(side);
}

static void first(struct side side)
{
    refused(side);
    time_outs(side);
    disconnected(side);
}

static void second(struct side side)
{
    mx_return_t code = mx_progress(side.endpoint);
    CHECK(code == MX_SUCCESS);
    disconnecting(side);
}

/* A peer is killed: what is under way ends, and its successor is another one. */
static void killed(void)
{
    int up[2], turns[2][2], base = base_port() + 2, status_word = 0;
    struct place other;
    struct side side;
    mx_request_t request, receive;
    mx_status_t status;
    mx_endpoint_addr_t old;
    uint32_t session[2];
    pid_t children[2], child;
    char turn = 0;
    CHECK(pipe(up) == 0);
    /* Both are made before there is a library: a child would have a copy of it. */
    for (int life = 0; life < 2; life++) {
        CHECK(pipe(turns[life]) == 0);
        children[life] = fork();
        CHECK(children[life] >= 0);
        if (children[life] == 0) {
            alarm(4 * HANG_SECONDS);
            CHECK(read(turns[life][0], &turn, 1) == 1);
            choose_board(medium, base, 1);
            OK(mx_init());
            OK(mx_open_endpoint(0, 1, KEY, NULL, 0, &side.endpoint));
            other = place_of(side.endpoint);
            CHECK(write(up[1], &other, sizeof other) == (ssize_t)sizeof other);
            for (;;)
                pause();
        }
    }
    choose_board(medium, base, 0);
    OK(mx_init());
    OK(mx_open_endpoint(0, 0, KEY, NULL, 0, &side.endpoint));
    for (int life = 0; life < 2; life++) {
        child = children[life];
        CHECK(write(turns[life][1], &turn, 1) == 1);
        CHECK(read(up[0], &other, sizeof other) == (ssize_t)sizeof other);
        side.peer = reach(side.endpoint, other);
        OK(mx_decompose_endpoint_addr2(side.peer, NULL, NULL, &session[life]));
        if (life == 1)
            break;
        old = side.peer;
        request = begin_send(side, buffer, sizeof buffer, 0x71);
        receive = begin_receive(side, buffer, 8, 0x72, ALL);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status_word, 0) == child);
        status = finish(side, request);
        CHECK(status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
        /* Its address names it still, though nobody is there. */
        status = finish(side, begin_send(side, buffer, 4, 0x73));
        CHECK(status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
        OK(mx_cancel(side.endpoint, &receive, (uint32_t *)&status_word));
        CHECK(status_word == 1);
    }
    CHECK(session[0] != session[1] && memcmp(&old, &side.peer, sizeof old) != 0);
    send_one(side, buffer, 4, 0x73);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status_word, 0) == child);
    OK(mx_close_endpoint(side.endpoint));
    OK(mx_finalize());
}

int main(int count, char **words)
{
    CHECK(count == 2);
    medium = words[1];
    /* Each with a library of its own. */
    pid_t child = fork();
    int status = 0;
    CHECK(child >= 0);
    if (child == 0) {
        alarm(4 * HANG_SECONDS);
        killed();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    both(medium, NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
