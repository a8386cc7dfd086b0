/* Programs that have just begun, before they have an endpoint and at once after they opened one: names, and cards that
 * nobody has. usage: resolving ether */
#include "check.h"
#include <open-mx.h>
#include <sched.h>

/* Longest time in which it is known that nobody is there. */
#define KNOWN_WITHIN 8.0
/* A card of which nobody hears. */
#define NOWHERE 0x0200deadbeefULL

static uint64_t far_nic;

/* The other host, by a name of its own, until it is told to end. */
static void be_far(int from, int to, int late)
{
    struct side side;
    uint64_t nic;
    char end;
    CHECK(unshare(CLONE_NEWUTS) == 0 && sethostname("faraway", 7) == 0);
    choose_board("ether", 0, 1);
    OK(mx_init());
    OK(mx_board_number_to_nic_id(0, &nic));
    CHECK(write(to, &nic, sizeof nic) == sizeof nic);
    nap(late);
    OK(mx_open_endpoint(0, 3, KEY, NULL, 0, &side.endpoint));
    CHECK(read(from, &end, 1) == 1);
    OK(mx_close_endpoint(side.endpoint));
    OK(mx_finalize());
}

/* The first call finds who is there, and says within its time that others are not. */
static void ask_first(void)
{
    char name[MX_MAX_HOSTNAME_LEN], other[] = "faraway:0", nobody[] = "nobody:7";
    uint64_t nic = 0;
    double start;
    OK(mx_init());
    OK(mx_hostname_to_nic_id(other, &nic));
    CHECK(nic == far_nic);
    OK(mx_nic_id_to_hostname(far_nic, name));
    CHECK(strcmp(name, other) == 0);
    start = now();
    CHECK(mx_hostname_to_nic_id(nobody, &nic) == MX_HOST_NOT_FOUND);
    CHECK(omx_hostname_to_nic_id(nobody, &nic) == OMX_PEER_NOT_FOUND);
    CHECK(mx_nic_id_to_hostname(NOWHERE, name) == MX_HOST_NOT_FOUND);
    CHECK(mx_nic_id_to_hostname(0x0300deadbeefULL, name) == MX_HOST_NOT_FOUND);
    CHECK(now() - start < KNOWN_WITHIN);
    OK(mx_finalize());
}

/* Also a card's name, by the native functions. */
static void ask_for_a_card(void)
{
    char name[OMX_HOSTNAMELEN_MAX];
    omx_set_error_handler(NULL, OMX_ERRORS_RETURN);
    CHECK(omx_init() == OMX_SUCCESS);
    CHECK(omx_nic_id_to_hostname(far_nic, name) == OMX_SUCCESS && strcmp(name, "faraway:0") == 0);
    CHECK(omx_nic_id_to_hostname(NOWHERE, name) == OMX_NIC_ID_NOT_FOUND);
    CHECK(omx_finalize() == OMX_SUCCESS);
}

static void connect_first(void)
{
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
    mx_request_t request;
    mx_status_t status;
    uint32_t result = 0;
    double start;
    OK(mx_init());
    OK(mx_open_endpoint(0, MX_ANY_ENDPOINT, 0, NULL, 0, &endpoint));
    OK(mx_connect(endpoint, far_nic, 3, KEY, LONG, &peer));
    CHECK(mx_connect(endpoint, far_nic, 4, KEY, LONG, &peer) == MX_CONNECTION_FAILED);
    start = now();
    CHECK(mx_connect(endpoint, NOWHERE, 3, KEY, LONG, &peer) == MX_NIC_NOT_FOUND);
    CHECK(now() - start < KNOWN_WITHIN);
    /* The agent has been there for long by now. */
    start = now();
    OK(mx_iconnect(endpoint, NOWHERE, 3, KEY, 5, NULL, &request));
    OK(mx_wait(endpoint, &request, LONG, &status, &result));
    CHECK(result == 1 && status.code == MX_STATUS_ENDPOINT_UNKNOWN && now() - start < 2.0);
    CHECK(mx_connect(endpoint, 0x0300deadbeefULL, 3, KEY, LONG, &peer) == MX_NIC_NOT_FOUND);
    /* One that does not wait for so long is told of its time. */
    CHECK(mx_connect(endpoint, NOWHERE + 1, 3, KEY, 20, &peer) == MX_TIMEOUT);
    OK(mx_close_endpoint(endpoint));
    OK(mx_finalize());
}

/* In a process of its own. */
static void in_child(void (*what)(void))
{
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(HANG_SECONDS);
        choose_board("ether", 0, 0);
        what();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void beside_a_host(int late, int count, void (**what)(void))
{
    int up[2], down[2], number, status = 0;
    pid_t child;
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(4 * HANG_SECONDS);
        be_far(down[0], up[1], late);
        exit(0);
    }
    CHECK(read(up[0], &far_nic, sizeof far_nic) == sizeof far_nic);
    for (number = 0; number < count; number++)
        in_child(what[number]);
    CHECK(write(down[1], "e", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char **words)
{
    void (*all[])(void) = {ask_first, ask_for_a_card, connect_first};
    CHECK(count == 2 && strcmp(words[1], "ether") == 0);
    alarm(4 * HANG_SECONDS);
    beside_a_host(0, 3, all);
    /* Its agent begins after ours. */
    beside_a_host(300, 1, all);
    printf("ok\n");
    return 0;
}
