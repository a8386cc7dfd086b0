/* The native functions, between two endpoints of a process; MX's headers are not needed. usage: native */
#include <open-mx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)
#define OK(call) CHECK((call) == OMX_SUCCESS)
#define ALL (~(uint64_t)0)
#define LONG 60000

static unsigned char out[100000], in[100000];

static omx_endpoint_t left, right;
static omx_endpoint_addr_t to_left, to_right;

static omx_status_t finish(omx_endpoint_t endpoint, omx_request_t request)
{
    omx_status_t status;
    uint32_t result = 0;
    memset(&status, 0xff, sizeof status);
    OK(omx_wait(endpoint, &request, &status, &result, LONG));
    CHECK(result == 1 && request == NULL);
    return status;
}

static void messages(void)
{
    omx_request_t send, receive, other;
    omx_seg_t pieces[2];
    omx_status_t status;
    uint32_t result = 7;
    void *context = NULL;
    memset(out, 0x5a, sizeof out);
    OK(omx_irecv(right, in, 100, 1, ALL, in, &receive));
    OK(omx_isend(left, out, 100, to_right, 1, out, &send));
    OK(omx_context(&send, &context));
    CHECK(context == out);
    status = finish(left, send);
    CHECK(status.code == OMX_SUCCESS && status.context == out && status.msg_length == 100);
    status = finish(right, receive);
    CHECK(status.code == OMX_SUCCESS && status.context == in && in[99] == 0x5a);
    CHECK(memcmp(&status.addr, &to_left, sizeof to_left) == 0);
    /* In pieces, and cut: one list of codes for calls and requests. */
    pieces[0].ptr = out;
    pieces[0].len = 50000;
    pieces[1].ptr = out + 50000;
    pieces[1].len = 50000;
    OK(omx_isendv(left, pieces, 2, to_right, 2, NULL, &send));
    OK(omx_irecv(right, in, 60000, 2, ALL, NULL, &receive));
    CHECK(finish(right, receive).code == OMX_MESSAGE_TRUNCATED);
    status = finish(left, send);
    CHECK(status.code == OMX_MESSAGE_TRUNCATED && status.xfer_length == 60000);
    OK(omx_issend(left, out, 10, to_right, 3, NULL, &send));
    OK(omx_test(left, &send, &status, &result));
    CHECK(result == 0);
    OK(omx_probe(right, 3, ALL, &status, &result, LONG));
    CHECK(result == 1 && status.msg_length == 10);
    OK(omx_iprobe(right, 4, ALL, &status, &result));
    CHECK(result == 0);
    OK(omx_probe(right, 4, ALL, &status, &result, 0));
    CHECK(result == 0);
    OK(omx_irecvv(right, pieces, 1, 3, ALL, NULL, &receive));
    OK(omx_peek(right, &other, &result, LONG));
    CHECK(result == 1 && other == receive);
    OK(omx_wait_any(right, 3, ALL, &status, &result, OMX_TIMEOUT_INFINITE));
    CHECK(result == 1 && finish(left, send).code == OMX_SUCCESS);
    OK(omx_ipeek(right, &other, &result));
    CHECK(result == 0);
    OK(omx_issendv(left, pieces, 0, to_right, 5, NULL, &send));
    OK(omx_irecv(right, NULL, 0, 5, ALL, NULL, NULL));
    CHECK(finish(left, send).code == OMX_SUCCESS);
}

static void cancels(void)
{
    omx_request_t send, receive;
    omx_status_t status;
    uint32_t result = 7;
    OK(omx_irecv(right, in, 10, 6, ALL, NULL, &receive));
    OK(omx_cancel(right, &receive, &result));
    CHECK(result == 1 && receive == NULL);
    OK(omx_irecv(right, in, 10, 6, ALL, &in, &receive));
    OK(omx_cancel_notest(right, &receive, &result));
    CHECK(result == 1 && receive != NULL);
    status = finish(right, receive);
    CHECK(status.code == OMX_CANCELLED && status.context == &in);
    /* It is what it was, for whoever looks for such. */
    OK(omx_irecv(right, in, 10, 6, ALL, &in, &receive));
    OK(omx_cancel_notest(right, &receive, &result));
    OK(omx_wait_any(right, 6, ALL, &status, &result, LONG));
    CHECK(result == 1 && status.code == OMX_CANCELLED && status.match_info == 6 && status.context == &in);
    OK(omx_isend(left, out, 50000, to_right, 7, NULL, &send));
    CHECK(omx_cancel(left, &send, &result) == OMX_BAD_REQUEST);
    OK(omx_ibuffered(left, &send, &result));
    CHECK(result == 0);
    OK(omx_irecv(right, in, 50000, 7, ALL, NULL, NULL));
    CHECK(finish(left, send).code == OMX_SUCCESS);
    OK(omx_isend(left, out, 5, to_right, 8, NULL, &send));
    OK(omx_forget(left, &send));
    CHECK(send == NULL);
    OK(omx_irecv(right, in, 5, 8, ALL, NULL, &receive));
    CHECK(finish(right, receive).code == OMX_SUCCESS);
}

static int calls;

static omx_unexp_handler_action_t take(void *context, omx_endpoint_addr_t source, uint64_t match,
                                       uint32_t length, void *data)
{
    CHECK(context == &calls && match == 9 && length == 6 && memcmp(data, "hello", 6) == 0);
    CHECK(memcmp(&source, &to_left, sizeof source) == 0);
    calls++;
    return OMX_UNEXP_HANDLER_RECV_FINISHED;
}

static int told;

static omx_return_t tell(char *text, omx_return_t code)
{
    CHECK(text != NULL && code == OMX_BAD_MATCH_MASK);
    told++;
    return OMX_FAILURE;
}

static void handlers(void)
{
    char hello[6] = "hello";
    omx_status_t status;
    uint32_t result;
    OK(omx_register_unexp_handler(right, take, &calls));
    OK(omx_isend(left, hello, 6, to_right, 9, NULL, NULL));
    while (calls == 0)
        OK(omx_progress(right));
    OK(omx_register_unexp_handler(right, NULL, NULL));
    CHECK(omx_set_error_handler(right, tell) == NULL);
    CHECK(omx_test_any(right, 3, 1, &status, &result) == OMX_FAILURE && told == 1);
    CHECK(omx_test_any(left, 3, 1, &status, &result) == OMX_BAD_MATCH_MASK && told == 1);
    CHECK(omx_set_error_handler(right, NULL) == tell);
}

int main(void)
{
    omx_request_t request;
    omx_status_t status;
    uint64_t nic, other;
    uint32_t number, session, result, count;
    char boards[64], name[OMX_HOSTNAMELEN_MAX];
    alarm(120);
    snprintf(boards, sizeof boards, "udp://127.0.0.1:%d", 12000 + (int)(getpid() % 240) * 80);
    CHECK(setenv("ROPEWALK_MX_BOARDS", boards, 1) == 0);
    CHECK(omx_set_error_handler(NULL, OMX_ERRORS_RETURN) == OMX_ERRORS_ARE_FATAL);
    CHECK(omx_finalize() == OMX_NOT_INITIALIZED);
    OK(omx_init());
    CHECK(omx_init() == OMX_ALREADY_INITIALIZED);
    OK(omx_board_number_to_nic_id(0, &nic));
    OK(omx_nic_id_to_hostname(nic, name));
    OK(omx_hostname_to_nic_id(name, &other));
    OK(omx_nic_id_to_board_number(nic, &number));
    OK(omx_get_info(NULL, OMX_INFO_BOARD_COUNT, NULL, 0, &count, sizeof count));
    CHECK(other == nic && number == 0 && count == 1);
    CHECK(omx_nic_id_to_hostname(1, name) == OMX_NIC_ID_NOT_FOUND);
    OK(omx_open_endpoint(0, 4, 7, NULL, 0, &left));
    OK(omx_open_endpoint(0, OMX_ANY_ENDPOINT, 8, NULL, 0, &right));
    CHECK(omx_connect(left, nic, 0, 9, LONG, &to_right) == OMX_REMOTE_ENDPOINT_BAD_CONNECTION_KEY);
    CHECK(omx_connect(left, nic, 9, 8, LONG, &to_right) == OMX_REMOTE_ENDPOINT_CLOSED);
    OK(omx_connect(left, nic, 0, 8, LONG, &to_right));
    OK(omx_iconnect(right, nic, 4, 7, 77, NULL, &request));
    OK(omx_wait_any(right, 77, ALL, &status, &result, LONG));
    CHECK(result == 1 && status.code == OMX_SUCCESS);
    to_left = status.addr;
    OK(omx_decompose_endpoint_addr_with_session(to_left, &other, &number, &session));
    CHECK(other == nic && number == 4 && session != 0);
    messages();
    cancels();
    handlers();
    OK(omx_disconnect(left, to_right));
    CHECK(omx_disconnect(left, to_right) == OMX_BAD_ENDPOINT);
    OK(omx_close_endpoint(left));
    OK(omx_close_endpoint(right));
    OK(omx_finalize());
    CHECK(strlen(omx_strerror(OMX_MESSAGE_TRUNCATED)) > 3);
    printf("ok\n");
    return 0;
}
