/* What the native functions tell of boards, endpoints and counters, by the numbers of Open-MX's keys, and what both families
 * tell without being told which board. usage: information */
#include <myriexpress.h>
#include <open-mx.h>
#include <stdio.h>
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

static omx_endpoint_t endpoint;

static omx_return_t ask(omx_endpoint_t of, int key, const void *in, uint32_t in_len, void *out,
                        uint32_t out_len)
{
    return omx_get_info(of, (omx_info_key_t)key, in, in_len, out, out_len);
}

static uint32_t word(int key)
{
    uint32_t value = 0xabababab;
    OK(ask(NULL, key, NULL, 0, &value, sizeof value));
    return value;
}

static void boards(void)
{
    char host[OMX_HOSTNAMELEN_MAX], name[OMX_HOSTNAMELEN_MAX], interface[OMX_BOARD_ADDR_STRLEN];
    uint64_t ids[3] = {7, 7, 7}, nic;
    uint8_t second = 1, third = 2;
    uint32_t number = 1;
    CHECK(word(0) >= 32 && word(1) == 255 && word(2) == 2);
    OK(omx_board_number_to_nic_id(1, &nic));
    OK(ask(NULL, 3, NULL, 0, ids, 16));
    CHECK(ids[1] == nic && ids[2] == 7);
    OK(ask(NULL, 3, NULL, 0, ids, sizeof ids));
    CHECK(ids[1] == nic && ids[2] == 0);
    CHECK(ask(NULL, 3, NULL, 0, ids, 15) == OMX_BAD_INFO_LENGTH);
    OK(omx_nic_id_to_hostname(nic, name));
    /* The endpoint is on the second board, whichever is named; without one the number counts, as a byte or a word. */
    OK(ask(endpoint, 4, NULL, 0, host, sizeof host));
    CHECK(strcmp(host, name) == 0);
    OK(ask(NULL, 4, &second, 1, host, sizeof host));
    CHECK(strcmp(host, name) == 0);
    OK(ask(NULL, 4, &number, sizeof number, host, 4));
    CHECK(strncmp(host, name, 3) == 0 && host[3] == '\0');
    OK(ask(endpoint, 5, NULL, 0, interface, sizeof interface));
    CHECK(strcmp(interface, "udp") == 0);
    OK(ask(endpoint, 6, NULL, 0, &number, sizeof number));
    CHECK(number == UINT32_MAX);
    CHECK(ask(NULL, 4, NULL, 0, host, sizeof host) == OMX_BAD_INFO_ADDRESS);
    CHECK(ask(NULL, 4, &second, 0, host, sizeof host) == OMX_BAD_INFO_LENGTH);
    CHECK(ask(NULL, 6, &third, 1, &number, sizeof number) == OMX_BOARD_NOT_FOUND);
    CHECK(ask(endpoint, 6, NULL, 0, NULL, 0) == OMX_BAD_INFO_ADDRESS);
    CHECK(ask((omx_endpoint_t)(void *)&second, 6, NULL, 0, &number, 4) == OMX_BAD_ENDPOINT);
}

static void counters(void)
{
    char label[128];
    uint32_t values[64], index = 0, count = word(7);
    CHECK(count > 0 && count <= 64);
    OK(ask(endpoint, 8, NULL, 0, values, sizeof values));
    CHECK(ask(endpoint, 8, NULL, 0, values, 4 * count - 1) == OMX_BAD_INFO_LENGTH);
    for (index = 0; index < count; index++) {
        uint8_t byte = (uint8_t)index;
        memset(label, 'x', sizeof label);
        OK(ask(NULL, 9, &byte, 1, label, sizeof label));
        CHECK(memchr(label, 0, sizeof label) != NULL && strlen(label) > 3);
        CHECK(ask(NULL, 9, &byte, 1, label, 3) == OMX_BAD_INFO_LENGTH);
    }
    CHECK(ask(NULL, 9, &count, sizeof count, label, sizeof label) == OMX_BAD_INFO_ADDRESS);
    CHECK(ask(NULL, 9, NULL, 0, label, sizeof label) == OMX_BAD_INFO_ADDRESS);
    CHECK(ask(NULL, 10, NULL, 0, label, sizeof label) == OMX_BAD_INFO_KEY);
}

/* Without input MX means the endpoint's board, or none at all where all boards are alike. */
static void as_mx(void)
{
    mx_endpoint_t same = (mx_endpoint_t)(void *)endpoint;
    uint32_t value = 7, bad = 9, values[64];
    char text[MX_MAX_STR_LEN];
    CHECK(mx_get_info(same, MX_PORT_COUNT, NULL, 0, &value, sizeof value) == MX_SUCCESS && value == 1);
    CHECK(mx_get_info(NULL, MX_PORT_COUNT, NULL, 0, &value, sizeof value) == MX_SUCCESS && value == 1);
    CHECK(mx_get_info(same, MX_NUMA_NODE, NULL, 0, &value, sizeof value) == MX_SUCCESS);
    CHECK(value == UINT32_MAX);
    CHECK(mx_get_info(same, MX_COUNTERS_VALUES, NULL, 0, values, sizeof values) == MX_SUCCESS);
    CHECK(mx_get_info(NULL, MX_SERIAL_NUMBER, NULL, 0, text, sizeof text) == MX_SUCCESS);
    CHECK(mx_get_info(NULL, MX_NUMA_NODE, NULL, 0, &value, 4) == MX_BAD_INFO_VAL);
    CHECK(mx_get_info(same, MX_NUMA_NODE, &bad, 4, &value, 4) == MX_BOARD_UNKNOWN);
    CHECK(mx_get_info(NULL, MX_PORT_COUNT, &bad, 4, &value, 4) == MX_BOARD_UNKNOWN);
    /* inttypes.h comes with the header. */
    CHECK(snprintf(text, sizeof text, "%" PRIx64, (uint64_t)18) == 2);
}

int main(void)
{
    char list[128];
    int port = 12000 + (int)(getpid() % 240) * 80;
    uint32_t value;
    alarm(60);
    snprintf(list, sizeof list, "udp://127.0.0.1:%d,udp://127.0.0.1:%d", port, port + 40);
    CHECK(setenv("ROPEWALK_MX_BOARDS", list, 1) == 0);
    omx_set_error_handler(NULL, OMX_ERRORS_RETURN);
    CHECK(ask(NULL, OMX_INFO_BOARD_MAX, NULL, 0, &value, 4) == OMX_NOT_INITIALIZED);
    OK(omx_init());
    OK(omx_open_endpoint(1, OMX_ANY_ENDPOINT, 1, NULL, 0, &endpoint));
    boards();
    counters();
    as_mx();
    OK(omx_close_endpoint(endpoint));
    OK(omx_finalize());
    printf("ok\n");
    return 0;
}
