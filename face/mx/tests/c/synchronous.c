/* Synchronous sends, of any length, by both families: complete when a receive took them and not before, and never shown
 * to a handler. usage: synchronous MEDIUM */
#include "check.h"
#include <open-mx.h>

#define LENGTHS 17
static const uint32_t lengths[LENGTHS] = {0,    1,    2,    4,    8,     32,    33,    128,    129,
                                          1024, 1452, 1453, 4097, 32768, 32769, 70000, 1 << 20};
static unsigned char out[1 << 20], in[1 << 20];

/* Makes progress for a moment: the request is not complete then. */
static void stays(struct side side, mx_request_t request)
{
    mx_status_t status;
    uint32_t result = 7;
    double start = now();
    do {
        OK(mx_test(side.endpoint, &request, &status, &result));
        CHECK(result == 0);
    } while (now() - start < 0.01);
}

static void send_all(struct side side)
{
    int number, waits;
    mx_status_t status;
    fill(out, sizeof out, 5);
    for (number = 0; number < LENGTHS; number++)
        for (waits = 0; waits < 2; waits++) {
            mx_segment_t all = segment(out, lengths[number]);
            mx_request_t request;
            if (!waits)
                meet(side);
            OK(mx_issend(side.endpoint, &all, 1, side.peer, number + 1, NULL, &request));
            if (waits) {
                stays(side, request);
                meet(side);
            }
            status = finish(side, request);
            CHECK(status.code == MX_STATUS_SUCCESS && status.xfer_length == lengths[number]);
        }
    meet(side);
}

static void receive_all(struct side side)
{
    int number;
    mx_status_t status;
    mx_request_t receive;
    for (number = 0; number < LENGTHS; number++) {
        /* Before it comes. */
        receive = begin_receive(side, in, lengths[number], number + 1, ALL);
        meet(side);
        status = finish(side, receive);
        CHECK(status.code == MX_STATUS_SUCCESS && status.xfer_length == lengths[number]);
        CHECK(is_filled(in, lengths[number], 5));
        memset(in, 0, lengths[number]);
        /* After it came. */
        meet(side);
        status = receive_one(side, in, lengths[number], number + 1);
        CHECK(status.code == MX_STATUS_SUCCESS && is_filled(in, lengths[number], 5));
    }
    meet(side);
}

/* To oneself, and with a handler, by their native names. */
#define TESTS_MAX 1000000
static int calls, shown;

static omx_unexp_handler_action_t refuse(void *context, omx_endpoint_addr_t source, uint64_t match,
                                         uint32_t length, void *data)
{
    (void)context, (void)source, (void)length;
    calls++;
    shown += data != NULL;
    return match == 1 ? OMX_UNEXP_HANDLER_RECV_FINISHED : OMX_UNEXP_HANDLER_RECV_CONTINUE;
}

static omx_status_t ended(omx_endpoint_t endpoint, omx_request_t request)
{
    omx_status_t status;
    uint32_t result = 0;
    CHECK(omx_wait(endpoint, &request, &status, &result, LONG) == OMX_SUCCESS && result == 1);
    return status;
}

static void to_oneself(struct side side)
{
    omx_endpoint_t endpoint = (omx_endpoint_t)(void *)side.endpoint;
    omx_endpoint_addr_t own;
    omx_request_t request;
    omx_status_t status;
    uint32_t result;
    int number, tests;
    CHECK(omx_get_endpoint_addr(endpoint, &own) == OMX_SUCCESS);
    CHECK(omx_register_unexp_handler(endpoint, refuse, NULL) == OMX_SUCCESS);
    for (number = 0; number < LENGTHS; number++) {
        uint32_t length = lengths[number];
        calls = shown = 0;
        /* One that is refused: nothing of it was taken. */
        CHECK(omx_issend(endpoint, out, length, own, 1, NULL, &request) == OMX_SUCCESS);
        status = ended(endpoint, request);
        CHECK(calls == 1 && shown == 0 && status.xfer_length == 0);
        CHECK(status.code == (length > 0 ? OMX_MESSAGE_TRUNCATED : OMX_SUCCESS));
        /* One that waits. */
        CHECK(omx_issend(endpoint, out, length, own, 2, NULL, &request) == OMX_SUCCESS);
        /* Another thread of the library may have the engine: then a test returns without a pass. */
        for (tests = 0; tests == 0 || (calls < 2 && tests < TESTS_MAX); tests++) {
            CHECK(omx_test(endpoint, &request, &status, &result) == OMX_SUCCESS && result == 0);
        }
        CHECK(calls == 2 && shown == 0);
        CHECK(omx_irecv(endpoint, in, length, 2, ALL, NULL, NULL) == OMX_SUCCESS);
        status = ended(endpoint, request);
        CHECK(status.code == OMX_SUCCESS && status.xfer_length == length);
        CHECK(memcmp(in, out, length) == 0);
        /* One that is not synchronous shows what it has, where it is short. */
        CHECK(omx_isend(endpoint, out, length, own, 1, NULL, &request) == OMX_SUCCESS);
        status = ended(endpoint, request);
        CHECK(calls == 3 && shown == (length <= 32768));
    }
    CHECK(omx_register_unexp_handler(endpoint, NULL, NULL) == OMX_SUCCESS);
}

static void first(struct side side)
{
    send_all(side);
    receive_all(side);
    to_oneself(side);
}

static void second(struct side side)
{
    receive_all(side);
    send_all(side);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
