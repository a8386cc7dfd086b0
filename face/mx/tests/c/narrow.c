/* An interface takes shorter frames than the wire's from now on, while messages are under way. usage: narrow MEDIUM
 *
 * The first side's interface has the name that the environment gives, behind the scheme. It is said there, once, what is
 * wrong; messages that need longer frames end as if the other side could not be reached, in both directions, and what
 * is short goes on until then.
 */
#include "check.h"

#define BYTES (1 << 20)

static unsigned char buffer[BYTES];

static void set_mtu(int bytes)
{
    char line[128];
    const char *name = strstr(getenv("ETHER_ONE"), "://");
    CHECK(name != NULL);
    /* What stands behind the question mark is about the wire. */
    snprintf(line, sizeof line, "ip link set %.*s mtu %d", (int)strcspn(name + 3, "?"), name + 3, bytes);
    CHECK(system(line) == 0);
}

static void first(struct side side)
{
    struct place other;
    mx_status_t status;
    double start;
    OK(mx_decompose_endpoint_addr(side.peer, &other.nic, &other.endpoint));
    for (int round = 0; round < 3; round++) {
        send_one(side, buffer, BYTES, 1);
        CHECK(receive_one(side, buffer, BYTES, 2).code == MX_STATUS_SUCCESS);
    }
    set_mtu(1000);
    /* Replies to our pulls do not come any more. */
    start = now();
    status = receive_one(side, buffer, BYTES, 3);
    CHECK(status.code == MX_STATUS_ENDPOINT_UNREACHABLE && now() - start < 20);
    meet(side);
    /* Ours do not leave. */
    start = now();
    status = finish(side, begin_send(side, buffer, BYTES, 4));
    CHECK(status.code == MX_STATUS_ENDPOINT_UNREACHABLE && now() - start < 20);
    set_mtu(1500);
    side.peer = reach(side.endpoint, other);
    CHECK(receive_one(side, buffer, BYTES, 5).code == MX_STATUS_SUCCESS);
    send_one(side, buffer, BYTES, 6);
}

static void second(struct side side)
{
    struct place other;
    mx_status_t status;
    double start = now();
    OK(mx_decompose_endpoint_addr(side.peer, &other.nic, &other.endpoint));
    for (int round = 0; round < 3; round++) {
        CHECK(receive_one(side, buffer, BYTES, 1).code == MX_STATUS_SUCCESS);
        send_one(side, buffer, BYTES, 2);
    }
    status = finish(side, begin_send(side, buffer, BYTES, 3));
    CHECK(status.code == MX_STATUS_TRUNCATED && status.xfer_length == 0);
    meet(side);
    status = receive_one(side, buffer, BYTES, 4);
    CHECK(status.code != MX_STATUS_SUCCESS && now() - start < 40);
    do {
        side.peer = reach(side.endpoint, other);
        status = finish(side, begin_send(side, buffer, BYTES, 5));
        CHECK(now() - start < HANG_SECONDS);
    } while (status.code != MX_STATUS_SUCCESS);
    CHECK(receive_one(side, buffer, BYTES, 6).code == MX_STATUS_SUCCESS);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
