/* Receives whose sender stops in the middle of a long message end with their own time-out, or with the endpoint's; those
 * without a message wait on. usage: stalled MEDIUM
 */
#include "check.h"
#include <sys/prctl.h>

#define LONG_BYTES (4 << 20)

static unsigned char buffer[LONG_BYTES];

/* The other side, which is a child of ours, has announced its message and does nothing any more. */
static pid_t stopped(struct side side, uint64_t match)
{
    mx_status_t status;
    siginfo_t told;
    uint32_t result = 0;
    OK(mx_probe(side.endpoint, LONG, match, ALL, &status, &result));
    CHECK(result == 1 && status.msg_length == LONG_BYTES);
    memset(&told, 0, sizeof told);
    CHECK(waitid(P_ALL, 0, &told, WSTOPPED) == 0);
    return told.si_pid;
}

static void stall(struct side side, int own, uint64_t match)
{
    mx_request_t waits, request;
    mx_status_t status;
    uint32_t result = 7;
    pid_t other = stopped(side, match);
    double start;
    OK(mx_set_request_timeout(side.endpoint, NULL, own ? 0 : 1000));
    waits = begin_receive(side, NULL, 0, match + 1, ALL);
    request = begin_receive(side, buffer, LONG_BYTES, match, ALL);
    start = now();
    if (own) {
        OK(mx_set_request_timeout(side.endpoint, waits, 1000));
        OK(mx_set_request_timeout(side.endpoint, request, 1000));
    }
    OK(mx_wait(side.endpoint, &request, 8000, &status, &result));
    CHECK(result == 1 && request == NULL && status.code == MX_STATUS_TIMEOUT);
    CHECK(status.match_info == match && status.msg_length == LONG_BYTES);
    CHECK(now() - start >= 0.99 && now() - start < 5);
    OK(mx_test(side.endpoint, &waits, &status, &result));
    CHECK(result == 0);
    /* Nothing lands any more. */
    fill(buffer, LONG_BYTES, 9);
    CHECK(kill(other, SIGCONT) == 0);
    CHECK(finish(side, waits).code == MX_STATUS_SUCCESS);
    meet(side);
    CHECK(is_filled(buffer, LONG_BYTES, 9));
    /* And with somebody who goes on all is as usual. */
    status = receive_one(side, buffer, LONG_BYTES, match);
    CHECK(status.code == MX_STATUS_SUCCESS && is_filled(buffer, LONG_BYTES, 2));
}

static void first(struct side side)
{
    stall(side, 0, 0x80);
    stall(side, 1, 0x90);
}

static void second(struct side side)
{
    /* Where a check of the first side fails, nobody would wake this one. */
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    fill(buffer, LONG_BYTES, 2);
    for (uint64_t match = 0x80; match <= 0x90; match += 0x10) {
        mx_request_t request = begin_send(side, buffer, LONG_BYTES, match);
        mx_status_t status;
        /* Time for the announce to leave. */
        nap(100);
        CHECK(raise(SIGSTOP) == 0);
        status = finish(side, request);
        CHECK(status.code != MX_STATUS_SUCCESS && status.xfer_length < LONG_BYTES);
        send_one(side, NULL, 0, match + 1);
        meet(side);
        send_one(side, buffer, LONG_BYTES, match);
    }
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
