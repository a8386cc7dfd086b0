/* What each call promises, between two processes. usage: semantics MEDIUM */
#include "check.h"

static const size_t SIZES[] = {0,    1,    31,   32,    33,    127,   128,    129,
                               4095, 4096, 4097, 32767, 32768, 32769, 200000, 1048576};
#define SIZES_COUNT (sizeof SIZES / sizeof SIZES[0])
#define MOST 1048576

static unsigned char one[MOST + 16], two[MOST + 16];

/* Message `number` of each size: the receive before and after the message, whole and in pieces. */
static void send_sizes(struct side side)
{
    size_t index;
    for (index = 0; index < SIZES_COUNT; index++) {
        size_t bytes = SIZES[index], part = bytes / 3;
        mx_segment_t pieces[4];
        mx_request_t requests[3];
        uint64_t match = 0x1000 + index * 8;
        fill(one, bytes, (unsigned)index);
        meet(side);
        requests[0] = begin_send(side, one, bytes, match);
        pieces[0] = segment(one, part);
        pieces[1] = segment(NULL, 0);
        pieces[2] = segment(one + part, part);
        pieces[3] = segment(one + 2 * part, bytes - 2 * part);
        OK(mx_isend(side.endpoint, pieces, 4, side.peer, match + 1, &pieces, &requests[1]));
        OK(mx_issend(side.endpoint, pieces, 4, side.peer, match + 2, NULL, &requests[2]));
        for (int number = 0; number < 3; number++) {
            mx_status_t status = finish(side, requests[number]);
            CHECK(status.code == MX_STATUS_SUCCESS && status.match_info == match + number);
            CHECK(status.msg_length == bytes && status.xfer_length == bytes);
            CHECK(status.context == (number == 1 ? (void *)pieces : NULL));
            CHECK(memcmp(&status.source, &side.peer, sizeof side.peer) == 0);
        }
        meet(side);
    }
    /* No segment at all. */
    mx_request_t request;
    OK(mx_isend(side.endpoint, NULL, 0, side.peer, 0x2000, NULL, &request));
    CHECK(finish(side, request).code == MX_STATUS_SUCCESS);
    meet(side);
}

static void receive_sizes(struct side side)
{
    size_t index;
    for (index = 0; index < SIZES_COUNT; index++) {
        size_t bytes = SIZES[index], part = bytes / 5;
        mx_segment_t pieces[3];
        mx_request_t before, after;
        uint64_t match = 0x1000 + index * 8;
        mx_status_t status;
        memset(one, 0xee, bytes + 16);
        before = begin_receive(side, one, bytes, match, ALL);
        meet(side);
        status = finish(side, before);
        CHECK(status.code == MX_STATUS_SUCCESS && status.match_info == match);
        CHECK(status.msg_length == bytes && status.xfer_length == bytes);
        CHECK(memcmp(&status.source, &side.peer, sizeof side.peer) == 0);
        CHECK(is_filled(one, bytes, (unsigned)index) && one[bytes] == 0xee);
        for (int number = 1; number < 3; number++) {
            memset(two, 0xee, bytes + 16);
            pieces[0] = segment(two, part);
            pieces[1] = segment(two + part, bytes - part);
            pieces[2] = segment(two + bytes, 8);
            OK(mx_irecv(side.endpoint, pieces, 3, match + number, ALL, &side, &after));
            status = finish(side, after);
            CHECK(status.code == MX_STATUS_SUCCESS && status.context == &side);
            CHECK(status.msg_length == bytes && status.xfer_length == bytes);
            CHECK(is_filled(two, bytes, (unsigned)index) && two[bytes] == 0xee);
        }
        meet(side);
    }
    CHECK(receive_one(side, one, 8, 0x2000).msg_length == 0);
    meet(side);
}

/* Matching: the earliest message, the earliest receive, bits under masks. */
static void send_matching(struct side side)
{
    unsigned value;
    meet(side);
    for (value = 1; value <= 6; value++)
        send_one(side, &value, sizeof value, 0xaa00 + value);
    meet(side);
    meet(side);
    for (value = 11; value <= 13; value++)
        send_one(side, &value, sizeof value, 0xbb00 + value);
    meet(side);
}

static void receive_matching(struct side side)
{
    unsigned values[8];
    mx_request_t requests[3];
    mx_status_t status;
    memset(values, 0, sizeof values);
    meet(side);
    meet(side);
    /* Six messages are there. */
    CHECK(finish(side, begin_receive(side, &values[0], 4, 0xaa04, ALL)).code == 0 && values[0] == 4);
    status = finish(side, begin_receive(side, &values[0], 4, 0xaa00, 0xff00));
    CHECK(values[0] == 1 && status.match_info == 0xaa01);
    status = finish(side, begin_receive(side, &values[0], 4, 0, 1));
    CHECK(values[0] == 2 && status.match_info == 0xaa02);
    CHECK(finish(side, begin_receive(side, &values[0], 4, 0, 0)).match_info == 0xaa03);
    CHECK(finish(side, begin_receive(side, &values[0], 4, 0, 0)).match_info == 0xaa05);
    CHECK(finish(side, begin_receive(side, &values[0], 4, 0, 0)).match_info == 0xaa06);
    /* Three receives accept the first of three messages; each gets what the ones before it left. */
    requests[0] = begin_receive(side, &values[0], 4, 0xbb0c, ALL);
    requests[1] = begin_receive(side, &values[1], 4, 0xbb00, 0xff00);
    requests[2] = begin_receive(side, &values[2], 4, 0xbb00, 0xff00);
    meet(side);
    CHECK(finish(side, requests[2]).match_info == 0xbb0d && values[2] == 13);
    CHECK(finish(side, requests[1]).match_info == 0xbb0b && values[1] == 11);
    CHECK(finish(side, requests[0]).match_info == 0xbb0c && values[0] == 12);
    meet(side);
}

/* Receives that are too short. */
static const size_t LONGS[] = {100, 20000, 300000};

static void send_cut(struct side side)
{
    for (int number = 0; number < 3; number++) {
        size_t bytes = LONGS[number];
        mx_segment_t all = segment(one, bytes);
        mx_request_t request;
        mx_status_t status;
        fill(one, bytes, 7);
        meet(side);
        status = finish(side, begin_send(side, one, bytes, 0x31));
        CHECK(status.msg_length == bytes);
        /* Small messages are gone before anybody looks at them. */
        CHECK(status.code == (bytes > 32768 ? MX_STATUS_TRUNCATED : MX_STATUS_SUCCESS));
        CHECK(status.xfer_length == (bytes > 32768 ? 60 : bytes));
        OK(mx_issend(side.endpoint, &all, 1, side.peer, 0x32, NULL, &request));
        status = finish(side, request);
        CHECK(status.code == MX_STATUS_TRUNCATED);
        CHECK(status.msg_length == bytes && status.xfer_length == 60);
        meet(side);
    }
}

static void receive_cut(struct side side)
{
    for (int number = 0; number < 3; number++) {
        size_t bytes = LONGS[number];
        meet(side);
        for (uint64_t match = 0x31; match <= 0x32; match++) {
            mx_status_t status;
            memset(two, 0xee, 64);
            status = receive_one(side, two, 60, match);
            CHECK(status.code == MX_STATUS_TRUNCATED);
            CHECK(status.msg_length == bytes && status.xfer_length == 60);
            CHECK(is_filled(two, 60, 7) && two[60] == 0xee);
        }
        meet(side);
    }
}

/* Tests, peeks and probes. */
static void send_looked_at(struct side side)
{
    meet(side);
    send_one(side, "abc", 3, 0x41);
    nap(20);
    send_one(side, one, 100000, 0x42);
    meet(side);
    meet(side);
    for (unsigned number = 1; number <= 4; number++)
        send_one(side, &number, 4, 0x50 + number);
    meet(side);
    nap(30);
    send_one(side, "x", 1, 0x61);
    nap(30);
    send_one(side, "y", 1, 0x62);
    meet(side);
}

static void probe_all(struct side side)
{
    mx_status_t status;
    uint32_t result = 7;
    OK(mx_iprobe(side.endpoint, 0x41, ALL, &status, &result));
    CHECK(result == 0);
    meet(side);
    OK(mx_probe(side.endpoint, LONG, 0x41, ALL, &status, &result));
    CHECK(result == 1 && status.msg_length == 3 && status.match_info == 0x41);
    CHECK(memcmp(&status.source, &side.peer, sizeof side.peer) == 0);
    OK(mx_probe(side.endpoint, LONG, 0x42, ALL, &status, &result));
    CHECK(result == 1 && status.msg_length == 100000);
    OK(mx_probe(side.endpoint, 20, 0x43, ALL, &status, &result));
    CHECK(result == 0);
    OK(mx_iprobe(side.endpoint, 0x40, 0xf0, &status, &result));
    CHECK(result == 1 && status.match_info == 0x41);
    CHECK(receive_one(side, two, 100000, 0x42).code == MX_STATUS_SUCCESS);
    CHECK(receive_one(side, two, 3, 0x41).code == MX_STATUS_SUCCESS);
    OK(mx_iprobe(side.endpoint, 0x40, 0xf0, &status, &result));
    CHECK(result == 0);
    meet(side);
}

static void receive_looked_at(struct side side)
{
    mx_request_t requests[4], other;
    unsigned values[4];
    mx_status_t status;
    uint32_t result = 7;
    void *context = NULL;
    probe_all(side);
    for (int number = 0; number < 4; number++) {
        mx_segment_t own = segment(&values[number], 4);
        OK(mx_irecv(side.endpoint, &own, 1, 0x51 + number, ALL, &values[number],
                    &requests[number]));
    }
    OK(mx_test(side.endpoint, &requests[0], &status, &result));
    CHECK(result == 0 && requests[0] != NULL);
    OK(mx_test_any(side.endpoint, 0, 0, &status, &result));
    CHECK(result == 0);
    OK(mx_ipeek(side.endpoint, &other, &result));
    CHECK(result == 0);
    OK(mx_wait(side.endpoint, &requests[0], 20, &status, &result));
    CHECK(result == 0);
    OK(mx_wait_any(side.endpoint, 20, 0x52, ALL, &status, &result));
    CHECK(result == 0);
    OK(mx_context(&requests[3], &context));
    CHECK(context == &values[3]);
    meet(side);
    meet(side);
    /* All four are complete, in their order: the oldest one stays until it is taken. */
    OK(mx_peek(side.endpoint, LONG, &other, &result));
    CHECK(result == 1 && other == requests[0]);
    OK(mx_ipeek(side.endpoint, &other, &result));
    CHECK(result == 1 && other == requests[0]);
    OK(mx_test_any(side.endpoint, 0x52, ALL, &status, &result));
    CHECK(result == 1 && status.match_info == 0x52 && status.context == &values[1]);
    OK(mx_test(side.endpoint, &requests[0], &status, &result));
    CHECK(result == 1 && requests[0] == NULL && values[0] == 1);
    OK(mx_wait_any(side.endpoint, LONG, 0x50, 0xf0, &status, &result));
    CHECK(result == 1 && status.match_info == 0x53);
    OK(mx_ipeek(side.endpoint, &other, &result));
    CHECK(result == 1 && other == requests[3]);
    OK(mx_forget(side.endpoint, &other));
    CHECK(other == NULL);
    OK(mx_ipeek(side.endpoint, &other, &result));
    CHECK(result == 0);
    /* What is not complete yet. */
    requests[0] = begin_receive(side, two, 1, 0x61, ALL);
    requests[1] = begin_receive(side, two + 1, 1, 0x62, ALL);
    OK(mx_wait_any(side.endpoint, LONG, 0x62, ALL, &status, &result));
    CHECK(result == 1 && two[1] == 'y');
    CHECK(finish(side, requests[0]).code == MX_STATUS_SUCCESS && two[0] == 'x');
    meet(side);
}

/* Cancel and forget. */
static void send_cancelled(struct side side)
{
    mx_request_t request;
    uint32_t result = 7;
    meet(side);
    send_one(side, "abc", 3, 0x71);
    meet(side);
    send_one(side, "def", 3, 0x72);
    request = begin_send(side, one, 100000, 0x73);
    CHECK(mx_cancel(side.endpoint, &request, &result) == MX_CANCEL_NOT_SUPPORTED);
    CHECK(request != NULL);
    OK(mx_ibuffered(side.endpoint, &request, &result));
    CHECK(result == 0);
    CHECK(finish(side, request).code == MX_STATUS_SUCCESS);
    request = begin_send(side, "g", 1, 0x74);
    OK(mx_ibuffered(side.endpoint, &request, &result));
    CHECK(result == 1);
    CHECK(finish(side, request).code == MX_STATUS_SUCCESS);
    OK(mx_isend(side.endpoint, NULL, 0, side.peer, 0x75, NULL, NULL));
    meet(side);
}

static void receive_cancelled(struct side side)
{
    char text[4] = {0};
    mx_request_t first, second, gone;
    uint32_t result = 7;
    mx_status_t status;
    first = begin_receive(side, text, 3, 0x71, ALL);
    second = begin_receive(side, text, 3, 0x71, ALL);
    OK(mx_cancel(side.endpoint, &first, &result));
    CHECK(result == 1 && first == NULL);
    gone = second;
    meet(side);
    meet(side);
    OK(mx_cancel(side.endpoint, &second, &result));
    CHECK(result == 0 && second != NULL);
    CHECK(mx_ibuffered(side.endpoint, &second, &result) == MX_BAD_REQUEST);
    CHECK(finish(side, second).code == MX_STATUS_SUCCESS && strcmp(text, "abc") == 0);
    /* A handle that was used up names nothing. */
    CHECK(mx_test(side.endpoint, &gone, &status, &result) == MX_BAD_REQUEST);
    CHECK(mx_cancel(side.endpoint, &gone, &result) == MX_BAD_REQUEST);
    first = begin_receive(side, text, 3, 0x72, ALL);
    OK(mx_forget(side.endpoint, &first));
    CHECK(first == NULL);
    nap(10);
    CHECK(receive_one(side, one, 100000, 0x73).code == MX_STATUS_SUCCESS);
    CHECK(strcmp(text, "def") == 0);
    CHECK(receive_one(side, text, 1, 0x74).code == MX_STATUS_SUCCESS);
    CHECK(receive_one(side, text, 1, 0x75).msg_length == 0);
    meet(side);
    OK(mx_test_any(side.endpoint, 0, 0, &status, &result));
    CHECK(result == 0);
}

static void refuse(struct side side)
{
    mx_segment_t pieces[1], bad;
    mx_request_t request = NULL;
    mx_status_t status;
    uint32_t result, number;
    uint64_t nic;
    mx_endpoint_addr_t strange;
    void *context = &bad;
    pieces[0] = segment(one, 1);
    bad = segment(NULL, 1);
    memset(&strange, 0x5a, sizeof strange);
    CHECK(mx_irecv(side.endpoint, pieces, 1, 3, 1, NULL, &request) == MX_BAD_MATCH_MASK);
    CHECK(mx_test_any(side.endpoint, 3, 1, &status, &result) == MX_BAD_MATCH_MASK);
    CHECK(mx_iprobe(side.endpoint, 3, 1, &status, &result) == MX_BAD_MATCH_MASK);
    CHECK(mx_irecv(side.endpoint, pieces, 257, 1, 1, NULL, &request) == MX_BAD_SEG_CNT);
    CHECK(mx_isend(side.endpoint, pieces, 257, side.peer, 1, NULL, &request) == MX_BAD_SEG_CNT);
    CHECK(mx_isend(side.endpoint, NULL, 1, side.peer, 1, NULL, &request) == MX_BAD_SEG_LIST);
    CHECK(mx_isend(side.endpoint, &bad, 1, side.peer, 1, NULL, &request) == MX_BAD_SEG_MEM);
    CHECK(mx_isend(side.endpoint, pieces, 1, strange, 1, NULL, &request) == MX_BAD_ENDPOINT);
    CHECK(mx_decompose_endpoint_addr(strange, &nic, &number) == MX_BAD_ENDPOINT);
    CHECK(mx_disconnect(side.endpoint, strange) == MX_BAD_ENDPOINT);
    CHECK(mx_test(side.endpoint, &request, &status, &result) == MX_BAD_REQUEST);
    CHECK(mx_close_endpoint((mx_endpoint_t)(uintptr_t)0x123456) == MX_BAD_ENDPOINT);
    CHECK(mx_progress(NULL) == MX_BAD_ENDPOINT);
    OK(mx_get_endpoint_addr_context(side.peer, &context));
    CHECK(context == NULL);
    OK(mx_set_endpoint_addr_context(side.peer, &bad));
    OK(mx_get_endpoint_addr_context(side.peer, &context));
    CHECK(context == &bad);
    CHECK(mx_set_endpoint_addr_context(strange, NULL) == MX_BAD_ENDPOINT);
    OK(mx_progress(side.endpoint));
}

/* Many at once, both ways. */
#define MANY 400
static void flood(struct side side)
{
    static unsigned out[MANY], in[MANY];
    mx_request_t sends[MANY], receives[MANY];
    mx_status_t status;
    for (unsigned number = 0; number < MANY; number++) {
        out[number] = number * 17;
        sends[number] = begin_send(side, &out[number], 4, 0x900000 + number % 7);
    }
    for (unsigned number = 0; number < MANY; number++)
        receives[number] = begin_receive(side, &in[number], 4, 0x900000, 0xfffff0);
    for (unsigned number = 0; number < MANY; number++) {
        CHECK(finish(side, sends[number]).code == MX_STATUS_SUCCESS);
        status = finish(side, receives[number]);
        CHECK(in[number] == number * 17 && status.match_info == 0x900000 + number % 7);
    }
    meet(side);
}

static void first(struct side side)
{
    send_sizes(side);
    receive_sizes(side);
    send_matching(side);
    send_cut(side);
    send_looked_at(side);
    send_cancelled(side);
    refuse(side);
    flood(side);
}

static void second(struct side side)
{
    receive_sizes(side);
    send_sizes(side);
    receive_matching(side);
    receive_cut(side);
    receive_looked_at(side);
    receive_cancelled(side);
    flood(side);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
