/* Variables of the environment. usage: variables */
#include "check.h"

static unsigned char buffer[200000];

static void to_oneself_like_others(void)
{
    struct side side;
    mx_request_t request;
    mx_status_t status;
    uint32_t result = 0, value = 0;
    OK(mx_get_info(NULL, MX_COPY_SEND_MAX, NULL, 0, &value, sizeof value));
    CHECK(value == 1000);
    /* Under any number: 7 is free, and so is 0. */
    OK(mx_open_endpoint(0, 7, KEY, NULL, 0, &side.endpoint));
    CHECK(place_of(side.endpoint).endpoint == 0);
    OK(mx_get_endpoint_addr(side.endpoint, &side.peer));
    /* Small messages do not wait for their receive, since this is no special way; larger ones than
     * the threshold do. */
    request = begin_send(side, buffer, 1000, 0xff00);
    CHECK(finish(side, request).code == MX_STATUS_SUCCESS);
    request = begin_send(side, buffer, 1001, 0xff01);
    OK(mx_wait(side.endpoint, &request, 30, &status, &result));
    CHECK(result == 0);
    CHECK(receive_one(side, buffer, 1001, 0xff01).code == MX_STATUS_SUCCESS);
    CHECK(finish(side, request).code == MX_STATUS_SUCCESS);
    CHECK(receive_one(side, buffer, 1001, 0xff00).msg_length == 1000);
    /* Context numbers without a parameter. */
    CHECK(mx_irecv(side.endpoint, NULL, 0, 0, 0, NULL, &request) ==
          MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK);
    OK(mx_irecv(side.endpoint, NULL, 0, 0, 0x700, NULL, &request));
    OK(mx_cancel(side.endpoint, &request, &result));
    OK(mx_close_endpoint(side.endpoint));
}

int main(void)
{
    alarm(2 * HANG_SECONDS);
    choose_board("shm", base_port(), 0);
    CHECK(setenv("MX_DISABLE_SELF", "1", 1) == 0);
    CHECK(setenv("OMX_ANY_ENDPOINT", "1", 1) == 0);
    CHECK(setenv("OMX_RNDV_THRESHOLD", "1000", 1) == 0);
    CHECK(setenv("OMX_CTXIDS", "3,8", 1) == 0);
    OK(mx_init());
    to_oneself_like_others();
    OK(mx_finalize());
    /* MX's names may be ignored, and with them that errors are not fatal. */
    CHECK(setenv("OMX_IGNORE_MX_ENV", "1", 1) == 0);
    CHECK(mx_set_error_handler(MX_ERRORS_RETURN) == MX_ERRORS_ARE_FATAL);
    CHECK(setenv("ROPEWALK_MX_BOARDS", "udp://nowhere", 1) == 0);
    CHECK(mx_init() == MX_FAILURE);
    CHECK(setenv("ROPEWALK_MX_BOARDS", "ether://no-such-card", 1) == 0);
    CHECK(mx_init() == MX_FAILURE);
    printf("ok\n");
    return 0;
}
