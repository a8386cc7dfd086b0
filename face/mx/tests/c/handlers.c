/* Handlers of unexpected messages and of errors. usage: handlers MEDIUM
 *
 * Synchronous messages are announced however short they are, or look so: their handler sees no bytes, and if it finishes
 * them their senders are told that nothing was taken.
 */
#include "check.h"

#define LARGE 200000

static unsigned char buffer[LARGE];

/* What the handler saw last, and what it answers. */
static struct {
    int calls;
    uint64_t match;
    uint32_t length;
    int has_data, answers_right;
    unsigned char bytes[64];
    mx_endpoint_addr_t source;
    mx_endpoint_t endpoint;
    mx_request_t posted;
    struct side side;
} seen;

static mx_unexp_handler_action_t handle(void *context, mx_endpoint_addr_t source, uint64_t match,
                                        uint32_t length, void *data)
{
    mx_segment_t room = segment(buffer, sizeof buffer);
    uint32_t result = 7;
    mx_status_t status;
    mx_endpoint_addr_t other;
    CHECK(context == &seen);
    if (match >> 32 == MEETING)
        return MX_RECV_CONTINUE;
    seen.calls++;
    seen.match = match;
    seen.length = length;
    seen.source = source;
    seen.has_data = data != NULL;
    if (data != NULL && length <= sizeof seen.bytes)
        memcpy(seen.bytes, data, length);
    switch (match & 0xf) {
    case 1: /* taken */
        return MX_RECV_FINISHED;
    case 2: /* a receive for it */
        OK(mx_irecv(seen.endpoint, &room, 1, match, ALL, NULL, &seen.posted));
        return MX_RECV_CONTINUE;
    case 3: /* one for others, and an answer to the sender */
        OK(mx_isend(seen.endpoint, NULL, 0, source, 0xf00, NULL, NULL));
        OK(mx_irecv(seen.endpoint, &room, 1, match + 0x10, ALL, NULL, &seen.posted));
        return MX_RECV_CONTINUE;
    case 4: /* what may not be done here */
        CHECK(mx_close_endpoint(seen.endpoint) == MX_CLOSE_IN_HANDLER);
        CHECK(mx_wait_any(seen.endpoint, 10, 9, ALL, &status, &result) == MX_CLOSE_IN_HANDLER);
        CHECK(mx_connect(seen.endpoint, 1, 0, 0, 10, &other) == MX_CLOSE_IN_HANDLER);
        OK(mx_test_any(seen.endpoint, 9, ALL, &status, &result));
        CHECK(result == 0);
        OK(mx_progress(seen.endpoint));
        return MX_RECV_FINISHED;
    default:
        return MX_RECV_CONTINUE;
    }
}

/* Makes progress until the handler was called so often. */
static void until(int calls)
{
    double start = now();
    while (seen.calls < calls) {
        OK(mx_progress(seen.endpoint));
        CHECK(now() - start < HANG_SECONDS);
    }
    CHECK(seen.calls == calls);
}

static void taken_ones(struct side side)
{
    static const uint32_t lengths[] = {0, 10, 32, 33, 128, 4000, 32768};
    mx_status_t status;
    uint32_t result;
    for (int number = 0; number < 7; number++) {
        meet(side);
        until(number + 1);
        CHECK(seen.match == 0xa01 && seen.length == lengths[number]);
        CHECK(!seen.has_data);
        CHECK(memcmp(&seen.source, &side.peer, sizeof side.peer) == 0);
        OK(mx_iprobe(side.endpoint, 0xa01, ALL, &status, &result));
        CHECK(result == 0);
    }
    /* Large ones come without their bytes. */
    meet(side);
    until(8);
    CHECK(seen.length == LARGE && !seen.has_data);
    meet(side);
    /* Those that are sent ahead bring them along. */
    for (int number = 1; number < 5; number++) {
        meet(side);
        until(8 + number);
        CHECK(seen.length == lengths[number] && seen.has_data);
        if (lengths[number] <= sizeof seen.bytes)
            CHECK(is_filled(seen.bytes, lengths[number], 3));
    }
    meet(side);
}

static void receive_handled(struct side side)
{
    mx_status_t status;
    mx_request_t posted;
    uint32_t result;
    int calls;
    seen.endpoint = side.endpoint;
    seen.side = side;
    OK(mx_register_unexp_handler(side.endpoint, handle, &seen));
    taken_ones(side);
    /* A receive that the handler posts takes the message. */
    calls = seen.calls;
    meet(side);
    until(calls + 1);
    status = finish(side, seen.posted);
    CHECK(status.code == MX_STATUS_SUCCESS && status.match_info == 0xb02);
    CHECK(status.xfer_length == LARGE && is_filled(buffer, LARGE, 4));
    meet(side);
    /* One that it posts for the next message does; that one is not shown. */
    until(calls + 2);
    CHECK(seen.match == 0xc03);
    meet(side);
    CHECK(finish(side, seen.posted).match_info == 0xc13 && seen.calls == calls + 2);
    OK(mx_iprobe(side.endpoint, 0xc03, ALL, &status, &result));
    CHECK(result == 1);
    CHECK(receive_one(side, buffer, 8, 0xc03).code == MX_STATUS_SUCCESS);
    meet(side);
    until(calls + 3);
    CHECK(seen.match == 0xd04);
    /* What a posted receive takes is not shown, nor is anything without a handler. */
    posted = begin_receive(side, buffer, 8, 0xe01, ALL);
    meet(side);
    CHECK(finish(side, posted).code == MX_STATUS_SUCCESS);
    CHECK(seen.calls == calls + 3);
    OK(mx_register_unexp_handler(side.endpoint, NULL, NULL));
    meet(side);
    OK(mx_probe(side.endpoint, LONG, 0xe11, ALL, &status, &result));
    CHECK(result == 1 && seen.calls == calls + 3);
    CHECK(receive_one(side, buffer, 8, 0xe11).code == MX_STATUS_SUCCESS);
}

static void send_handled(struct side side)
{
    static const uint32_t lengths[] = {0, 10, 32, 33, 128, 4000, 32768};
    mx_status_t status;
    fill(buffer, LARGE, 3);
    for (int number = 0; number < 7; number++) {
        meet(side);
        mx_segment_t all = segment(buffer, lengths[number]);
        mx_request_t request;
        OK(mx_issend(side.endpoint, &all, 1, side.peer, 0xa01, NULL, &request));
        status = finish(side, request);
        CHECK(status.code == (lengths[number] > 0 ? MX_STATUS_TRUNCATED : MX_STATUS_SUCCESS));
        CHECK(status.msg_length == lengths[number] && status.xfer_length == 0);
    }
    meet(side);
    status = finish(side, begin_send(side, buffer, LARGE, 0xa01));
    CHECK(status.code == MX_STATUS_TRUNCATED && status.xfer_length == 0);
    meet(side);
    for (int number = 1; number < 5; number++) {
        meet(side);
        status = finish(side, begin_send(side, buffer, lengths[number], 0xa01));
        CHECK(status.code == MX_STATUS_SUCCESS && status.xfer_length == lengths[number]);
    }
    meet(side);
    fill(buffer, LARGE, 4);
    meet(side);
    send_one(side, buffer, LARGE, 0xb02);
    meet(side);
    send_one(side, buffer, 8, 0xc03);
    CHECK(receive_one(side, NULL, 0, 0xf00).code == MX_STATUS_SUCCESS);
    meet(side);
    send_one(side, buffer, 8, 0xc13);
    meet(side);
    send_one(side, buffer, 8, 0xd04);
    meet(side);
    send_one(side, buffer, 8, 0xe01);
    meet(side);
    send_one(side, buffer, 8, 0xe11);
}

/* Messages that an endpoint sends to itself within the handler are shown after it. */
static int depth, deepest, own_calls;

static mx_unexp_handler_action_t handle_own(void *context, mx_endpoint_addr_t source, uint64_t match,
                                            uint32_t length, void *data)
{
    mx_segment_t none = segment(buffer, 4);
    (void)length;
    if (match >> 32 == MEETING)
        return MX_RECV_CONTINUE;
    CHECK(data != NULL);
    depth++;
    deepest = depth > deepest ? depth : deepest;
    own_calls++;
    if (match < 5)
        OK(mx_isend((mx_endpoint_t)context, &none, 1, source, match + 1, NULL, NULL));
    depth--;
    return MX_RECV_FINISHED;
}

static void send_to_oneself(struct side side)
{
    mx_endpoint_addr_t own;
    double start = now();
    OK(mx_get_endpoint_addr(side.endpoint, &own));
    OK(mx_register_unexp_handler(side.endpoint, handle_own, side.endpoint));
    OK(mx_isend(side.endpoint, NULL, 0, own, 1, NULL, NULL));
    while (own_calls < 5 && now() - start < HANG_SECONDS)
        OK(mx_progress(side.endpoint));
    CHECK(own_calls == 5 && deepest == 1);
    OK(mx_register_unexp_handler(side.endpoint, NULL, NULL));
}

/* Handlers of errors: told once of each, and what they return is the code. */
static int told;
static mx_return_t told_code;

static mx_return_t swallow(char *text, mx_return_t code)
{
    CHECK(text != NULL && text[0] != '\0');
    told++;
    told_code = code;
    return MX_SUCCESS;
}

static mx_return_t change(char *text, mx_return_t code)
{
    (void)text;
    told++;
    told_code = code;
    return MX_BAD_BAD_BAD;
}

static void errors(struct side side)
{
    mx_request_t request = NULL;
    mx_status_t status;
    uint32_t result;
    mx_error_handler_t before = mx_set_error_handler(swallow);
    CHECK(before == MX_ERRORS_RETURN);
    OK(mx_test_any(side.endpoint, 3, 1, &status, &result));
    CHECK(told == 1 && told_code == MX_BAD_MATCH_MASK);
    CHECK(mx_set_error_handler(change) == swallow);
    CHECK(mx_test_any(side.endpoint, 3, 1, &status, &result) == MX_BAD_BAD_BAD && told == 2);
    CHECK(mx_set_error_handler(swallow) == change);
    /* A request that ends with an error: the native code, once. */
    told = 0;
    request = begin_receive(side, buffer, 10, 0x99, ALL);
    meet(side);
    status = finish(side, request);
    CHECK(told == 1 && (int)told_code == 95 && status.code == MX_STATUS_SUCCESS);
    CHECK(status.msg_length == 100 && status.xfer_length == 10);
    CHECK(mx_set_error_handler(MX_ERRORS_RETURN) == swallow);
}

static void first(struct side side)
{
    receive_handled(side);
    send_to_oneself(side);
    errors(side);
    meet(side);
}

static void second(struct side side)
{
    send_handled(side);
    meet(side);
    send_one(side, buffer, 100, 0x99);
    meet(side);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
