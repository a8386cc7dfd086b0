/* What one process can see: beginning and end, boards, names, information, endpoints, and messages to
 * itself and between its own endpoints. usage: alone */
#include "check.h"

#include <mx_io.h>

static unsigned char one[300000], two[300000];

static void before_init(void)
{
    uint64_t nic;
    CHECK(mx_board_number_to_nic_id(0, &nic) == MX_NOT_INITIALIZED);
    CHECK(mx_finalize() == MX_NOT_INITIALIZED);
    CHECK(mx__init_api(0) == MX_BAD_LIB_VERSION);
    CHECK(mx__init_api(0x201) == MX_BAD_LIB_VERSION);
    CHECK(mx__init_api(0x400) == MX_BAD_LIB_VERSION);
}

static void names(int base)
{
    uint64_t nic, other, ids[4] = {0};
    uint32_t board = 7, count = 0;
    char name[MX_MAX_HOSTNAME_LEN], host[64], own[80], twin[16] = "two";
    OK(mx_board_number_to_nic_id(0, &nic));
    CHECK(nic >> 40 == 2 && nic >> 48 == 0);
    CHECK(mx_board_number_to_nic_id(9, &other) == MX_BOARD_UNKNOWN);
    OK(mx_nic_id_to_board_number(nic, &board));
    CHECK(board == 0);
    CHECK(mx_nic_id_to_board_number(nic + 1, &board) == MX_BOARD_UNKNOWN);
    OK(mx_nic_id_to_hostname(nic, name));
    CHECK(gethostname(host, sizeof host) == 0);
    snprintf(own, sizeof own, "%s:0", host);
    CHECK(strcmp(name, own) == 0);
    OK(mx_hostname_to_nic_id(name, &other));
    CHECK(other == nic);
    OK(mx_hostname_to_nic_id(twin, &other));
    CHECK(other != nic && other >> 40 == 2);
    twin[2] = '\0';
    CHECK(mx_hostname_to_nic_id(twin, &other) == MX_HOST_NOT_FOUND);
    CHECK(mx_nic_id_to_hostname(12345, name) == MX_HOST_NOT_FOUND);
    OK(mx_get_info(NULL, MX_NIC_COUNT, NULL, 0, &count, sizeof count));
    CHECK(count == 1);
    OK(mx_get_info(NULL, MX_NIC_IDS, NULL, 0, ids, sizeof ids));
    CHECK(ids[0] == nic && ids[1] == 0);
    (void)base;
}

static void information(void)
{
    uint32_t value = 0, board = 0, bad = 9, count = 0, *values;
    char text[MX_MAX_STR_LEN], *labels;
    OK(mx_get_info(NULL, MX_MAX_NATIVE_ENDPOINTS, NULL, 0, &value, sizeof value));
    CHECK(value == 255);
    OK(mx_get_info(NULL, MX_NATIVE_REQUESTS, NULL, 0, &value, sizeof value));
    CHECK(value == UINT32_MAX);
    OK(mx_get_info(NULL, MX_PIO_SEND_MAX, NULL, 0, &value, sizeof value));
    CHECK(value == 128);
    OK(mx_get_info(NULL, MX_COPY_SEND_MAX, NULL, 0, &value, sizeof value));
    CHECK(value == 32768);
    OK(mx_get_info(NULL, MX_NET_TYPE, NULL, 0, &value, sizeof value));
    CHECK(value == MX_NET_ETHER);
    OK(mx_get_info(NULL, MX_LINE_SPEED, NULL, 0, &value, sizeof value));
    CHECK(value == MX_SPEED_OPEN_MX);
    OK(mx_get_info(NULL, MX_PORT_COUNT, &board, sizeof board, &value, sizeof value));
    CHECK(value == 1);
    CHECK(mx_get_info(NULL, MX_PORT_COUNT, &bad, 4, &value, 4) == MX_BOARD_UNKNOWN);
    value = 7;
    OK(mx_get_info(NULL, MX_NUMA_NODE, &board, sizeof board, &value, sizeof value));
    CHECK(value == UINT32_MAX);
    CHECK(mx_get_info(NULL, MX_NUMA_NODE, &bad, 4, &value, 4) == MX_BOARD_UNKNOWN);
    CHECK(mx_get_info(NULL, MX_NUMA_NODE, NULL, 0, &value, 4) == MX_BAD_INFO_VAL);
    OK(mx_get_info(NULL, MX_PRODUCT_CODE, &board, sizeof board, text, sizeof text));
    CHECK(strncmp(text, "N/A", 3) == 0);
    CHECK(mx_get_info(NULL, MX_NIC_COUNT, NULL, 0, &value, 3) == MX_BAD_INFO_LENGTH);
    CHECK(mx_get_info(NULL, (mx_get_info_key_t)99, NULL, 0, &value, 4) == MX_BAD_INFO_KEY);
    OK(mx_get_info(NULL, MX_COUNTERS_COUNT, NULL, 0, &count, sizeof count));
    CHECK(count > 0 && count < 100);
    labels = (char *)calloc(count, MX_MAX_STR_LEN);
    values = (uint32_t *)calloc(count, sizeof *values);
    OK(mx_get_info(NULL, MX_COUNTERS_LABELS, NULL, 0, labels, count * MX_MAX_STR_LEN));
    OK(mx_get_info(NULL, MX_COUNTERS_VALUES, &board, 4, values, count * 4));
    CHECK(strlen(labels) > 3 && strlen(labels + (count - 1) * MX_MAX_STR_LEN) > 3);
    free(labels);
    free(values);
    CHECK(strlen(mx_strerror(MX_BAD_BAD_BAD)) > 3 && strlen(mx_strerror((mx_return_t)777)) > 3);
    CHECK(strcmp(mx_strstatus(MX_STATUS_SUCCESS), mx_strstatus(MX_STATUS_TRUNCATED)) != 0);
}

/* What Open MPI looks at: a handle has the size of a number. */
static void mapper(void)
{
    mx_mapper_state_t state;
    struct {
        mx_endpt_handle_t handle;
        int guard;
    } board;
    board.handle = board.guard = 77;
    OK(mx_open_board(0, &board.handle));
    CHECK(board.handle != 77 && board.guard == 77);
    CHECK(mx_open_board(9, &board.handle) == MX_BOARD_UNKNOWN);
    state.board_number = 0;
    CHECK(mx__get_mapper_state(board.handle, &state) == 0);
    CHECK(state.map_version == 1 && state.num_hosts > 0 && state.routes_valid == 1);
    state.board_number = 9;
    CHECK(mx__get_mapper_state(board.handle, &state) == -1);
}

static void opening(void)
{
    mx_endpoint_t endpoint = NULL, other = NULL, all[40];
    mx_param_t params[2];
    int count = 0;
    memset(params, 0, sizeof params);
    CHECK(mx_open_endpoint(9, 0, KEY, NULL, 0, &endpoint) == MX_BOARD_UNKNOWN);
    CHECK(mx_open_endpoint(0, 255, KEY, NULL, 0, &endpoint) == MX_BAD_ENDPOINT);
    OK(mx_open_endpoint(0, 254, KEY, NULL, 0, &endpoint));
    CHECK(place_of(endpoint).endpoint == 254);
    OK(mx_close_endpoint(endpoint));
    CHECK(mx_open_endpoint(0, 0, KEY, NULL, 1, &endpoint) == MX_BAD_PARAM_LIST);
    params[0].key = (mx_param_key_t)9;
    CHECK(mx_open_endpoint(0, 0, KEY, params, 1, &endpoint) == MX_BAD_PARAM_NAME);
    params[0].key = MX_PARAM_CONTEXT_ID;
    params[0].val.context_id.bits = 17;
    CHECK(mx_open_endpoint(0, 0, KEY, params, 1, &endpoint) == MX_BAD_PARAM_VAL);
    params[0].val.context_id.bits = 16;
    params[0].val.context_id.shift = 49;
    CHECK(mx_open_endpoint(0, 0, KEY, params, 1, &endpoint) == MX_BAD_PARAM_VAL);
    params[0].key = MX_PARAM_UNEXP_QUEUE_MAX;
    params[0].val.unexp_queue_max = 1;
    OK(mx_open_endpoint(0, 3, KEY, params, 1, &endpoint));
    CHECK(mx_open_endpoint(0, 3, KEY, NULL, 0, &other) == MX_BUSY);
    OK(mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &other));
    CHECK(place_of(other).endpoint == 0 && place_of(endpoint).endpoint == 3);
    OK(mx_close_endpoint(endpoint));
    CHECK(mx_close_endpoint(endpoint) == MX_BAD_ENDPOINT);
    CHECK(mx_progress(endpoint) == MX_BAD_ENDPOINT);
    OK(mx_open_endpoint(0, 3, KEY, NULL, 0, &endpoint));
    OK(mx_close_endpoint(endpoint));
    /* One after the other. */
    while (count < 40 && mx_open_endpoint(0, MX_ANY_ENDPOINT, 0, NULL, 0, &all[count]) == MX_SUCCESS)
        count++;
    CHECK(count == 40 && place_of(all[39]).endpoint == 40);
    while (count > 0)
        OK(mx_close_endpoint(all[--count]));
    OK(mx_close_endpoint(other));
}

/* To itself: complete when it is received, whatever its length; the memory is free at once. */
static void to_oneself(void)
{
    static const size_t sizes[] = {0, 10, 33, 4097, 32768, 32769, 300000};
    struct side side;
    mx_request_t request;
    mx_status_t status;
    uint32_t result;
    uint64_t nic;
    struct place own;
    OK(mx_open_endpoint(0, 2, KEY, NULL, 0, &side.endpoint));
    OK(mx_get_endpoint_addr(side.endpoint, &side.peer));
    own = place_of(side.endpoint);
    OK(mx_board_number_to_nic_id(0, &nic));
    CHECK(own.endpoint == 2 && own.nic == nic);
    for (int number = 0; number < 7; number++) {
        size_t bytes = sizes[number];
        fill(one, bytes, 5);
        request = begin_send(side, one, bytes, 0x10);
        OK(mx_test(side.endpoint, &request, &status, &result));
        CHECK(result == 0);
        OK(mx_ibuffered(side.endpoint, &request, &result));
        CHECK(result == 1);
        memset(one, 0, bytes);
        status = receive_one(side, two, bytes, 0x10);
        CHECK(status.code == MX_STATUS_SUCCESS && is_filled(two, bytes, 5));
        CHECK(memcmp(&status.source, &side.peer, sizeof side.peer) == 0);
        CHECK(finish(side, request).code == MX_STATUS_SUCCESS);
    }
    /* Cut, on both sides. */
    fill(one, 5000, 6);
    request = begin_receive(side, two, 100, 0x11, ALL);
    status = finish(side, begin_send(side, one, 5000, 0x11));
    CHECK(status.code == MX_STATUS_TRUNCATED && status.xfer_length == 100);
    status = finish(side, request);
    CHECK(status.code == MX_STATUS_TRUNCATED && status.msg_length == 5000);
    /* By a connect. */
    OK(mx_connect(side.endpoint, own.nic, 2, KEY, LONG, &side.peer));
    OK(mx_iconnect(side.endpoint, own.nic, 2, KEY, 0x77, &side, &request));
    OK(mx_wait_any(side.endpoint, LONG, 0x77, ALL, &status, &result));
    CHECK(result == 1 && status.context == &side);
    CHECK(memcmp(&status.source, &side.peer, sizeof side.peer) == 0);
    OK(mx_close_endpoint(side.endpoint));
}

/* Between two endpoints of this process, which connects while nobody tests the other one. */
static void to_a_neighbour(void)
{
    struct side left, right;
    struct place from;
    void *context = &left;
    mx_request_t request;
    OK(mx_open_endpoint(0, 0, KEY, NULL, 0, &left.endpoint));
    OK(mx_open_endpoint(0, 1, KEY, NULL, 0, &right.endpoint));
    OK(mx_connect(left.endpoint, place_of(right.endpoint).nic, 1, KEY, LONG, &left.peer));
    /* Who was connected to knows its partner by what it sends, and may answer. */
    send_one(left, "hello", 6, 4);
    right.peer = receive_one(right, two, 6, 4).source;
    CHECK(strcmp((char *)two, "hello") == 0);
    OK(mx_decompose_endpoint_addr(right.peer, &from.nic, &from.endpoint));
    CHECK(from.nic == place_of(left.endpoint).nic && from.endpoint == 0);
    OK(mx_get_endpoint_addr_context(right.peer, &context));
    CHECK(context == NULL);
    OK(mx_set_endpoint_addr_context(right.peer, &right));
    send_one(right, "to you", 7, 5);
    CHECK(receive_one(left, two, 7, 5).code == MX_STATUS_SUCCESS);
    /* By a connect it is the same one. */
    OK(mx_connect(right.endpoint, place_of(left.endpoint).nic, 0, KEY, LONG, &right.peer));
    OK(mx_get_endpoint_addr_context(right.peer, &context));
    CHECK(context == &right);
    fill(one, sizeof one, 8);
    for (size_t bytes = 1; bytes <= sizeof one; bytes *= 13) {
        request = begin_receive(right, two, bytes, 5, ALL);
        send_one(left, one, bytes, 5);
        CHECK(finish(right, request).xfer_length == bytes && is_filled(two, bytes, 8));
    }
    OK(mx_close_endpoint(left.endpoint));
    OK(mx_close_endpoint(right.endpoint));
}

/* What a call that fails says beside its code. */
#define FAILS(call, wanted)                                                                       \
    do {                                                                                          \
        result = 9;                                                                               \
        CHECK((call) == (wanted));                                                                \
        CHECK(result == 0);                                                                       \
    } while (0)

static void failures(void)
{
    mx_endpoint_t bad = NULL;
    mx_request_t none, left = NULL;
    mx_status_t status;
    uint32_t result;
    struct side side;
    OK(mx_open_endpoint(0, 2, KEY, NULL, 0, &side.endpoint));
    OK(mx_get_endpoint_addr(side.endpoint, &side.peer));
    FAILS(mx_test_any(side.endpoint, 5, 2, &status, &result), MX_BAD_MATCH_MASK);
    FAILS(mx_wait_any(side.endpoint, 10, 5, 2, &status, &result), MX_BAD_MATCH_MASK);
    FAILS(mx_iprobe(side.endpoint, 5, 2, &status, &result), MX_BAD_MATCH_MASK);
    FAILS(mx_probe(side.endpoint, 10, 5, 2, &status, &result), MX_BAD_MATCH_MASK);
    memset(&none, 0, sizeof none);
    FAILS(mx_test(side.endpoint, &none, &status, &result), MX_BAD_REQUEST);
    FAILS(mx_wait(side.endpoint, &none, 10, &status, &result), MX_BAD_REQUEST);
    FAILS(mx_test(side.endpoint, NULL, &status, &result), MX_BAD_REQUEST);
    FAILS(mx_ibuffered(side.endpoint, &none, &result), MX_BAD_REQUEST);
    FAILS(mx_cancel(side.endpoint, &none, &result), MX_BAD_REQUEST);
    FAILS(mx_ipeek(bad, &left, &result), MX_BAD_ENDPOINT);
    FAILS(mx_peek(bad, 10, &left, &result), MX_BAD_ENDPOINT);
    FAILS(mx_test_any(bad, 0, 0, &status, &result), MX_BAD_ENDPOINT);
    left = begin_send(side, one, 40000, 0x10);
    FAILS(mx_cancel(side.endpoint, &left, &result), MX_CANCEL_NOT_SUPPORTED);
    CHECK(receive_one(side, two, 40000, 0x10).code == MX_STATUS_SUCCESS);
    CHECK(finish(side, left).code == MX_STATUS_SUCCESS);
    /* Nobody has to want it. */
    CHECK(mx_test_any(side.endpoint, 5, 2, &status, NULL) == MX_BAD_MATCH_MASK);
    OK(mx_close_endpoint(side.endpoint));
}

int main(void)
{
    int base = base_port();
    CHECK(mx_set_error_handler(MX_ERRORS_RETURN) == MX_ERRORS_ARE_FATAL);
    alarm(4 * HANG_SECONDS);
    choose_board("shm", base, 0);
    before_init();
    OK(mx_init());
    CHECK(mx_init() == MX_ALREADY_INITIALIZED);
    names(base);
    information();
    mapper();
    opening();
    failures();
    to_oneself();
    to_a_neighbour();
    OK(mx_finalize());
    CHECK(mx_finalize() == MX_NOT_INITIALIZED);
    OK(mx_init());
    to_a_neighbour();
    OK(mx_finalize());
    printf("ok\n");
    return 0;
}
