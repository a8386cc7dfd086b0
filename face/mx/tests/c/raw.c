/* Raw endpoints: frames between two hosts, which are network namespaces with a card `eth0` each. The second one is
 * named by the environment. usage: raw */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <mx_raw.h>
#include <omx_raw.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>

#define MTU 1024
#define SENDS 64
#define FRAMES 32
/* A card that nobody has. */
#define NOBODY 0x020000000077ULL
/* What frames of this test have behind their type, and beacons do not. */
#define MARK 0xa5

static uint64_t own, other;
static uint32_t beacons;

/* A frame of the other side's, or for everybody, with a number. */
static void make(uint8_t *frame, size_t bytes, uint64_t to, uint16_t number)
{
    int at;
    fill(frame, bytes, number);
    for (at = 0; at < 6; at++) {
        frame[at] = (uint8_t)(to >> (40 - 8 * at));
        frame[6 + at] = (uint8_t)(own >> (40 - 8 * at));
    }
    memcpy(frame + 12, "\x86\xdf\0\0\x01", 5);
    if (bytes > 19) {
        frame[17] = MARK;
        frame[18] = (uint8_t)(number >> 8);
        frame[19] = (uint8_t)number;
    }
}

static uint64_t nic_at(const uint8_t *bytes)
{
    uint64_t nic = 0;
    int at;
    for (at = 0; at < 6; at++)
        nic = nic << 8 | bytes[at];
    return nic;
}

static mx_raw_status_t next(mx_raw_endpoint_t raw, void *buffer, uint32_t *bytes, uint32_t timeout,
                            void **context)
{
    mx_raw_status_t status = 77;
    uint32_t port = 77;
    OK(mx_raw_next_event(raw, &port, context, buffer, bytes, timeout, &status));
    CHECK(status == MX_RAW_RECV_COMPLETE ? port == 0 : port == 77);
    return status;
}

static void show(const uint8_t *frame, uint32_t bytes)
{
    uint32_t at;
    fprintf(stderr, "%u bytes, own %012llx, other %012llx:", bytes, (unsigned long long)own,
            (unsigned long long)other);
    for (at = 0; at < bytes && at < 64; at++)
        fprintf(stderr, " %02x", frame[at]);
    fprintf(stderr, "\n");
}

static int is_beacon(const uint8_t *frame, uint32_t bytes)
{
    CHECK(memcmp(frame + 12, "\x86\xdf", 2) == 0 && frame[16] == 1);
    if (bytes > 17 && frame[17] == MARK)
        return 0;
    if (bytes != 64 || nic_at(frame) != 0xffffffffffffULL || nic_at(frame + 6) != other)
        show(frame, bytes);
    CHECK(bytes == 64 && nic_at(frame) == 0xffffffffffffULL && nic_at(frame + 6) == other);
    CHECK(nic_at(frame + 34) == other);
    beacons++;
    return 1;
}

/* The next frame that is no beacon, whole and as it was made; its number. */
static uint16_t receive(mx_raw_endpoint_t raw, uint32_t expected, uint64_t to)
{
    static uint8_t frame[MTU + 8], made[MTU];
    uint32_t bytes;
    uint16_t number;
    void *context = &bytes;
    do {
        bytes = sizeof frame;
        memset(frame, 0xee, sizeof frame);
        CHECK(next(raw, frame, &bytes, LONG, &context) == MX_RAW_RECV_COMPLETE);
        CHECK(context == &bytes && bytes <= MTU && frame[bytes] == 0xee);
    } while (is_beacon(frame, bytes));
    CHECK(bytes == (expected < 60 ? 60 : expected));
    number = (uint16_t)(frame[18] << 8 | frame[19]);
    CHECK(nic_at(frame) == to && nic_at(frame + 6) == other);
    make(made, expected, to, number);
    CHECK(memcmp(frame + 12, made + 12, expected - 12) == 0);
    for (; expected < 60; expected++)
        CHECK(frame[expected] == 0);
    return number;
}

static void send_frame(mx_raw_endpoint_t raw, uint32_t bytes, uint64_t to, uint16_t number)
{
    uint8_t frame[MTU];
    make(frame, bytes, to, number);
    OK(mx_raw_send(raw, 3, frame, 2, frame, bytes, &own + number % 2));
    /* It may be used again at once. */
    memset(frame, 0, sizeof frame);
}

static void is_sent(mx_raw_endpoint_t raw, uint16_t number)
{
    uint8_t frame[MTU];
    uint32_t bytes = sizeof frame;
    void *context = NULL;
    mx_raw_status_t status;
    while ((status = next(raw, frame, &bytes, LONG, &context)) == MX_RAW_RECV_COMPLETE) {
        CHECK(is_beacon(frame, bytes));
        bytes = sizeof frame;
    }
    CHECK(status == MX_RAW_SEND_COMPLETE && context == &own + number % 2);
}

/* Frames that wait are taken out, until there is none. */
static void drain(mx_raw_endpoint_t raw, uint32_t timeout)
{
    uint8_t frame[MTU];
    uint32_t bytes;
    void *context;
    mx_raw_status_t status;
    double start = now();
    do {
        bytes = sizeof frame;
        status = next(raw, frame, &bytes, timeout, &context);
        CHECK(status == MX_RAW_NO_EVENT || is_beacon(frame, bytes));
        CHECK(now() - start < HANG_SECONDS);
    } while (status != MX_RAW_NO_EVENT);
}

static int is_readable(mx_raw_endpoint_t raw, int timeout)
{
    struct pollfd fd;
    fd.fd = mx_raw_handle(raw);
    fd.events = POLLIN;
    CHECK(fd.fd >= 0 && poll(&fd, 1, timeout) >= 0);
    return fd.revents != 0;
}

static mx_raw_endpoint_t open_raw(void)
{
    mx_raw_endpoint_t raw = NULL;
    OK(mx_raw_open_endpoint(0, NULL, 0, &raw));
    CHECK(raw != NULL);
    return raw;
}

/* A process that opens the endpoint tells what came of it, and stays until it is killed. */
static pid_t holder(mx_return_t expected)
{
    int pair[2];
    char byte;
    mx_raw_endpoint_t raw;
    pid_t child;
    CHECK(pipe(pair) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        OK(mx_init());
        CHECK(mx_raw_open_endpoint(0, NULL, 0, &raw) == expected);
        CHECK(write(pair[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    close(pair[1]);
    CHECK(read(pair[0], &byte, 1) == 1);
    close(pair[0]);
    return child;
}

static void bury(pid_t child)
{
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* Before this process has the library. */
static void one_for_a_board(void)
{
    pid_t first = holder(MX_SUCCESS), second = holder(MX_BUSY);
    bury(second);
    bury(first);
    /* Who has died has it no more. */
    first = holder(MX_SUCCESS);
    bury(first);
}

static void opening(void)
{
    mx_raw_endpoint_t raw = NULL, twin = NULL;
    mx_endpoint_t endpoint = NULL;
    mx_param_t param;
    memset(&param, 0, sizeof param);
    CHECK(mx_raw_open_endpoint(9, NULL, 0, &raw) == MX_BOARD_UNKNOWN);
    CHECK(mx_raw_open_endpoint(MX_ANY_NIC, NULL, 0, &raw) == MX_BOARD_UNKNOWN);
    CHECK(mx_raw_open_endpoint(0, NULL, 1, &raw) == MX_BAD_PARAM_LIST);
    param.key = (mx_param_key_t)9;
    CHECK(mx_raw_open_endpoint(0, &param, 1, &raw) == MX_BAD_PARAM_NAME);
    param.key = MX_PARAM_ERROR_HANDLER;
    param.val.error_handler = MX_ERRORS_RETURN;
    OK(mx_raw_open_endpoint(0, &param, 1, &raw));
    CHECK(mx_raw_open_endpoint(0, NULL, 0, &twin) == MX_BUSY && twin == NULL);
    CHECK(omx_raw_open_endpoint(0, NULL, 0, (omx_raw_endpoint_t *)&twin) == OMX_BUSY);
    /* Others may be there beside it, and stay. */
    OK(mx_open_endpoint(0, 0, KEY, NULL, 0, &endpoint));
    CHECK(mx_open_endpoint(0, 255, KEY, NULL, 0, (mx_endpoint_t *)&twin) == MX_BAD_ENDPOINT);
    OK(mx_raw_close_endpoint(raw));
    CHECK(mx_raw_close_endpoint(raw) == MX_BAD_ENDPOINT && mx_raw_handle(raw) == -1);
    CHECK(mx_raw_set_route_begin(raw) == MX_BAD_ENDPOINT);
    twin = open_raw();
    CHECK(twin != raw);
    OK(mx_progress(endpoint));
    OK(mx_close_endpoint(endpoint));
    OK(mx_raw_close_endpoint(twin));
}

static const uint32_t sizes[] = {20, 59, 60, 61, 512, MTU - 1, MTU};

static void exchange(mx_raw_endpoint_t raw, int is_first)
{
    uint8_t frame[MTU + 1];
    int turn, number;
    make(frame, sizeof frame, other, 1);
    CHECK(mx_raw_send(raw, 0, NULL, 0, frame, MTU + 1, NULL) == MX_BAD_SEG_LIST);
    CHECK(mx_raw_send(raw, 0, NULL, 0, frame, 13, NULL) == MX_BAD_SEG_LIST);
    CHECK(mx_raw_send(raw, 0, NULL, 0, NULL, 60, NULL) == MX_BAD_SEG_LIST);
    for (turn = 0; turn < 2; turn++)
        for (number = 0; number < 7; number++) {
            uint64_t to = turn == 0 ? other : 0xffffffffffffULL;
            if (is_first) {
                send_frame(raw, sizes[number], to, (uint16_t)number);
                is_sent(raw, (uint16_t)number);
            }
            /* What is for one card only is named by the one who gets it. */
            CHECK(receive(raw, sizes[number], turn == 0 ? own : to) == number);
            if (!is_first) {
                send_frame(raw, sizes[number], to, (uint16_t)number);
                is_sent(raw, (uint16_t)number);
            }
        }
}

/* Only this side's. */
static void events(mx_raw_endpoint_t raw)
{
    int number;
    uint8_t frame[60];
    uint32_t bytes = sizeof frame;
    omx_raw_endpoint_t native = (omx_raw_endpoint_t)(void *)raw;
    omx_raw_status_t status = 77;
    void *context = NULL;
    double start = now();
    drain(raw, 0);
    drain(raw, 20);
    while (is_readable(raw, 0)) {
        drain(raw, 0);
        CHECK(now() - start < HANG_SECONDS);
    }
    for (number = 0; number < SENDS; number++)
        send_frame(raw, 60, NOBODY, (uint16_t)number);
    CHECK(mx_raw_send(raw, 0, NULL, 0, frame, 60, NULL) == MX_NO_RESOURCES);
    CHECK(is_readable(raw, LONG));
    /* Without an event there is room, and events wait for who wants them. */
    make(frame, sizeof frame, NOBODY, 1);
    CHECK(omx_raw_send(native, frame, sizeof frame) == OMX_SUCCESS);
    do {
        bytes = sizeof frame;
        CHECK(omx_raw_next_event(native, frame, &bytes, 20, &status) == OMX_SUCCESS);
    } while (status == OMX_RAW_RECV_COMPLETE);
    CHECK(status == OMX_RAW_NO_EVENT);
    for (number = 0; number < SENDS; number++)
        is_sent(raw, (uint16_t)number);
    CHECK(omx__raw_send(native, frame, sizeof frame, 1, &number) == OMX_SUCCESS);
    do {
        bytes = 0;
        CHECK(omx__raw_next_event(native, NULL, &context, NULL, &bytes, 0xffffffffU, &status, 1) ==
              OMX_SUCCESS);
    } while (status == OMX_RAW_RECV_COMPLETE);
    CHECK(status == OMX_RAW_SEND_COMPLETE && context == &number && bytes == 0);
    drain(raw, 0);
}

/* What this process counts at its board. */
static uint32_t counted(const char *label)
{
    uint32_t count = 0, board = 0, at, values[64];
    static char labels[64][MX_MAX_STR_LEN];
    OK(mx_get_info(NULL, MX_COUNTERS_COUNT, NULL, 0, &count, sizeof count));
    CHECK(count <= 64);
    OK(mx_get_info(NULL, MX_COUNTERS_LABELS, NULL, 0, labels, sizeof labels));
    OK(mx_get_info(NULL, MX_COUNTERS_VALUES, &board, sizeof board, values, sizeof values));
    for (at = 0; at < count; at++)
        if (strcmp(labels[at], label) == 0)
            return values[at];
    CHECK(!"there is such a counter");
    return 0;
}

#define FLOOD 100

static void flood(mx_raw_endpoint_t raw)
{
    int number;
    for (number = 0; number < FLOOD; number++) {
        send_frame(raw, 100, other, (uint16_t)number);
        is_sent(raw, (uint16_t)number);
    }
}

/* Of many frames those that came first wait, and the others are counted. */
static void overflow(mx_raw_endpoint_t raw, uint32_t dropped)
{
    uint8_t frame[MTU];
    uint32_t bytes, count = 0;
    void *context;
    for (;;) {
        bytes = sizeof frame;
        if (next(raw, frame, &bytes, 0, &context) == MX_RAW_NO_EVENT)
            break;
        if (is_beacon(frame, bytes))
            continue;
        CHECK(bytes == 100 && frame[18] == 0 && frame[19] == count);
        count++;
    }
    /* Some beacons may have been there before them. */
    CHECK(count <= FRAMES && count > FRAMES / 2);
    CHECK(counted("raw packets dropped") - dropped >= FLOOD - count);
    CHECK(counted("raw packets received") >= count);
}

/* A frame is cut to the room that there is. */
static void cut(mx_raw_endpoint_t raw)
{
    uint8_t frame[64];
    uint32_t bytes;
    void *context;
    do {
        bytes = 30;
        memset(frame, 0xee, sizeof frame);
        CHECK(next(raw, frame, &bytes, LONG, &context) == MX_RAW_RECV_COMPLETE);
        CHECK(bytes == 30 && frame[30] == 0xee);
    } while (frame[17] != MARK);
    CHECK(frame[19] == 9);
}

static void names_are(uint64_t nic, const char *name)
{
    char found[MX_MAX_HOSTNAME_LEN], wanted[MX_MAX_HOSTNAME_LEN];
    uint64_t card = 0;
    OK(mx_nic_id_to_hostname(nic, found));
    CHECK(strcmp(found, name) == 0);
    strcpy(wanted, name);
    OK(mx_hostname_to_nic_id(wanted, &card));
    CHECK(card == nic);
}

/* Names and cards that a mapper sets are those that everybody of this host is told. */
static void peers(mx_raw_endpoint_t raw)
{
    uint64_t nic = 0x020000001234ULL, twin = 0x020000001235ULL, card;
    uint8_t route[4] = {0};
    char name[100], switch7[] = "switch:7", mapper[] = "mapper:0";
    mx_mapper_state_t state;
    struct {
        mx_endpt_handle_t handle, guard;
    } board = {77, 77};
    uint32_t ports = 77;
    mx_line_speed_t speed = MX_SPEED_2G;

    OK(mx_raw_num_ports(raw, &ports));
    OK(mx_raw_line_speed(raw, &speed));
    CHECK(ports == 1 && speed == MX_SPEED_OPEN_MX);
    OK(mx_raw_set_nic_reply_info(raw, route, sizeof route));

    OK(mx_raw_set_route_begin(raw));
    OK(mx_raw_set_route(raw, nic, route, sizeof route, 0, 0, MX_HOST_MX));
    OK(mx_raw_set_route_mag(raw, twin, route, sizeof route, 0, 0, MX_HOST_MX, 5));
    OK(mx_raw_set_route(raw, own, NULL, 0, 0, 0, MX_HOST_MX));
    CHECK(mx_raw_set_route(raw, 0xffffffffffffULL, NULL, 0, 0, 0, MX_HOST_MX) == MX_BAD_NIC);
    CHECK(mx_raw_set_route(raw, 0, NULL, 0, 0, 0, MX_HOST_MX) == MX_BAD_NIC);
    CHECK(mx_raw_set_route(raw, 1ULL << 48, NULL, 0, 0, 0, MX_HOST_MX) == MX_BAD_NIC);
    OK(mx_raw_set_route_end(raw));
    CHECK(mx_nic_id_to_hostname(nic, name) == MX_HOST_NOT_FOUND);
    OK(mx_raw_set_peer_name(raw, nic, switch7));
    names_are(nic, "switch:7");
    /* Another route, or none, does not change the name. */
    OK(mx_raw_set_route(raw, nic, NULL, 0, 0, 0, MX_HOST_MX));
    OK(mx_raw_clear_routes(raw, nic, 0));
    names_are(nic, "switch:7");
    OK(mx_raw_remove_peer(raw, nic));
    OK(mx_raw_remove_peer(raw, nic));
    OK(mx_raw_remove_peer(raw, twin));
    CHECK(mx_nic_id_to_hostname(nic, name) == MX_HOST_NOT_FOUND);
    CHECK(mx_hostname_to_nic_id(switch7, &card) == MX_HOST_NOT_FOUND);
    CHECK(mx_raw_remove_peer(raw, own) == MX_BAD_NIC);

    memset(name, 'n', sizeof name);
    name[80] = '\0';
    CHECK(mx_raw_set_hostname(raw, name) == MX_BAD_HOSTNAME_ARGS);
    CHECK(mx_raw_set_peer_name(raw, nic, NULL) == MX_BAD_HOSTNAME_ARGS);
    name[0] = '\0';
    CHECK(mx_raw_set_hostname(raw, name) == MX_BAD_HOSTNAME_ARGS);
    CHECK(mx_raw_set_hostname(NULL, name) == MX_BAD_ENDPOINT);
    OK(mx_raw_set_hostname(raw, mapper));
    names_are(own, "mapper:0");

    OK(mx_open_board(0, &board.handle));
    CHECK(board.guard == 77);
    memset(&state, 0xff, sizeof state);
    state.board_number = 0;
    CHECK(mx__get_mapper_state(board.handle, &state) == 0);
    CHECK(state.map_version == 1 && state.network_configured == 1 && nic_at(state.mapper_mac) == 0);
    OK(mx_raw_set_map_version(raw, 0, other, 17, 5, 0));
    CHECK(mx__get_mapper_state(board.handle, &state) == 0);
    CHECK(state.network_configured == 0 && state.num_hosts == 5);
    OK(mx_raw_set_map_version(raw, 0, other, 18, 6, 1));
    CHECK(mx__get_mapper_state(board.handle, &state) == 0);
    CHECK(nic_at(state.mapper_mac) == other && state.map_version == 18 && state.num_hosts == 6);
    CHECK(state.network_configured == 1 && state.routes_valid == 1 && state.iport == 0);
}

/* The other host has found this one by beacons, and knows what it is called now. */
static void find_mapper(void)
{
    char mapper[] = "mapper:0";
    uint64_t nic = 0;
    double start = now();
    while (mx_hostname_to_nic_id(mapper, &nic) != MX_SUCCESS) {
        CHECK(now() - start < HANG_SECONDS);
        nap(10);
    }
    CHECK(nic == other);
}

/* The other side's agent goes on telling of itself, and both this side's agent and this endpoint hear it. */
static void hear_beacon(mx_raw_endpoint_t raw)
{
    uint8_t frame[MTU];
    uint32_t bytes;
    void *context;
    while (beacons == 0) {
        bytes = sizeof frame;
        CHECK(next(raw, frame, &bytes, LONG, &context) == MX_RAW_RECV_COMPLETE);
        CHECK(is_beacon(frame, bytes));
    }
}

static void *wait_for_nothing(void *raw)
{
    uint8_t frame[MTU];
    uint32_t bytes, port;
    void *context;
    mx_raw_status_t status;
    mx_return_t code;
    do {
        bytes = sizeof frame;
        code = mx_raw_next_event((mx_raw_endpoint_t)raw, &port, &context, frame, &bytes,
                                 0xffffffffU, &status);
    } while (code == MX_SUCCESS);
    CHECK(code == MX_BAD_ENDPOINT);
    return NULL;
}

static void side(int is_first, int from, int to)
{
    mx_raw_endpoint_t raw;
    pthread_t waiter;
    uint32_t dropped;
    int step = 0, seen = 0;
    OK(mx_init());
    OK(mx_board_number_to_nic_id(0, &own));
    talk(from, to, &own, &other, sizeof own);
    opening();
    raw = open_raw();
    talk(from, to, &step, &seen, sizeof step);
    exchange(raw, is_first);
    events(raw);

    drain(raw, 0);
    dropped = counted("raw packets dropped");
    talk(from, to, &step, &seen, sizeof step);
    if (!is_first)
        flood(raw);
    talk(from, to, &step, &seen, sizeof step);
    if (is_first)
        overflow(raw, dropped);
    talk(from, to, &step, &seen, sizeof step);
    if (is_first)
        cut(raw);
    else {
        send_frame(raw, 60, other, 9);
        is_sent(raw, 9);
    }
    talk(from, to, &step, &seen, sizeof step);

    if (is_first)
        peers(raw);
    else
        find_mapper();
    talk(from, to, &step, &seen, sizeof step);
    hear_beacon(raw);

    CHECK(pthread_create(&waiter, NULL, wait_for_nothing, raw) == 0);
    nap(20);
    OK(mx_raw_close_endpoint(raw));
    CHECK(pthread_join(waiter, NULL) == 0);
    OK(mx_raw_close_endpoint(open_raw()));
    talk(from, to, &step, &seen, sizeof step);
    /* It is there until it is closed. */
    raw = open_raw();
    OK(mx_finalize());
    OK(mx_raw_close_endpoint(raw));
    CHECK(mx_raw_close_endpoint(raw) == MX_NOT_INITIALIZED);
}

int main(void)
{
    int up[2], down[2], status = 0, there;
    pid_t child;
    mx_raw_endpoint_t raw;
    const char *namespace_path = getenv("ETHER_OTHER");
    alarm(4 * HANG_SECONDS);
    CHECK(setenv("MX_ERRORS_ARE_FATAL", "0", 1) == 0 && namespace_path != NULL);
    mx_set_error_handler(MX_ERRORS_RETURN);
    CHECK(mx_raw_open_endpoint(0, NULL, 0, &raw) == MX_NOT_INITIALIZED);
    CHECK(setenv("ROPEWALK_MX_BOARDS", "mxoe://eth0", 1) == 0);
    one_for_a_board();
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        there = open(namespace_path, O_RDONLY);
        CHECK(there >= 0 && setns(there, CLONE_NEWNET) == 0);
        alarm(4 * HANG_SECONDS);
        close(up[0]);
        close(down[1]);
        side(0, down[0], up[1]);
        return 0;
    }
    close(up[1]);
    close(down[0]);
    side(1, up[0], down[1]);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("ok\n");
    return 0;
}
