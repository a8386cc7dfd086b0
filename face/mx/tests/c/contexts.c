/* Context numbers: some bits of the match information choose one of several sets of receives, messages and
 * completions. usage: contexts MEDIUM */
#include "check.h"

/* Bits 8 to 10. */
#define SHIFT 8
#define BITS 3
#define OF(context, rest) (((uint64_t)(context) << SHIFT) | (rest))

static mx_param_t parameter(void)
{
    mx_param_t parameter;
    memset(&parameter, 0, sizeof parameter);
    parameter.key = MX_PARAM_CONTEXT_ID;
    parameter.val.context_id.bits = BITS;
    parameter.val.context_id.shift = SHIFT;
    return parameter;
}

static void first(struct side side)
{
    unsigned values[8] = {0};
    mx_segment_t one = segment(values, 4);
    mx_request_t requests[8], other;
    mx_status_t status;
    uint32_t result = 7;
    CHECK(mx_irecv(side.endpoint, &one, 1, 5, 0xff, NULL, &other) ==
          MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK);
    CHECK(mx_irecv(side.endpoint, &one, 1, OF(1, 0), 0x300, NULL, &other) ==
          MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK);
    CHECK(mx_ipeek(side.endpoint, &other, &result) == MX_NOT_SUPPORTED_WITH_CONTEXT_ID);
    CHECK(mx_peek(side.endpoint, 10, &other, &result) == MX_NOT_SUPPORTED_WITH_CONTEXT_ID);
    for (unsigned context = 0; context < 8; context++)
        requests[context] =
            begin_receive(side, &values[context], 4, OF(context, 0), OF(7, 0) | ~(uint64_t)0 << 32);
    meet(side);
    meet(side);
    /* The completions of one, whatever came before in others. */
    OK(mx_test_any(side.endpoint, OF(5, 0), OF(7, 0), &status, &result));
    CHECK(result == 1 && status.match_info == OF(5, 0x50005) && values[5] == 5);
    OK(mx_test_any(side.endpoint, OF(5, 0), OF(7, 0), &status, &result));
    CHECK(result == 0);
    /* All of them, in their order: the other side sent in the order 7, 6, ... */
    OK(mx_test_any(side.endpoint, 0x70000, 0x70000, &status, &result));
    CHECK(result == 1 && status.match_info == OF(7, 0x70007));
    OK(mx_wait_any(side.endpoint, LONG, 0, OF(4, 0), &status, &result));
    CHECK(result == 1 && status.match_info == OF(3, 0x30003));
    for (unsigned context = 0; context < 8; context++)
        if (context != 5 && context != 7 && context != 3)
            CHECK(finish(side, requests[context]).code == MX_STATUS_SUCCESS);
    /* Probing some and all. */
    OK(mx_iprobe(side.endpoint, OF(2, 0), OF(7, 0), &status, &result));
    CHECK(result == 0);
    OK(mx_probe(side.endpoint, LONG, 0x90000, 0xf0000, &status, &result));
    CHECK(result == 1 && status.match_info == OF(6, 0x90000));
    CHECK(receive_one(side, values, 4, OF(6, 0x90000)).code == MX_STATUS_SUCCESS);
    meet(side);
}

static void second(struct side side)
{
    meet(side);
    for (unsigned context = 8; context-- > 0;)
        send_one(side, &context, 4, OF(context, context | context << 16));
    send_one(side, "abcd", 4, OF(6, 0x90000));
    meet(side);
    meet(side);
}

int main(int count, char **words)
{
    mx_param_t with_contexts = parameter();
    CHECK(count == 2);
    both(words[1], &with_contexts, 1, first, second);
    printf("ok\n");
    return 0;
}
