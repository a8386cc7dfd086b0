/* Keys beside a connection that there is, from both sides at once. usage: keys MEDIUM */
#include "check.h"

static void ask(struct side side)
{
    mx_endpoint_addr_t peer;
    mx_request_t requests[4];
    mx_status_t status;
    struct place other;
    OK(mx_decompose_endpoint_addr(side.peer, &other.nic, &other.endpoint));
    CHECK(mx_connect(side.endpoint, other.nic, other.endpoint, KEY + 1, LONG, &peer) ==
          MX_BAD_CONNECTION_KEY);
    for (int which = 0; which < 4; which++)
        OK(mx_iconnect(side.endpoint, other.nic, other.endpoint, KEY + which % 2, 0x55 + which,
                       &peer, &requests[which]));
    for (int which = 0; which < 4; which++) {
        status = finish(side, requests[which]);
        CHECK(status.code == (which % 2 ? MX_STATUS_BAD_KEY : MX_STATUS_SUCCESS));
        CHECK(status.match_info == (uint64_t)(0x55 + which) && status.context == &peer);
    }
    CHECK(mx_connect(side.endpoint, other.nic, other.endpoint, ~KEY, LONG, &peer) ==
          MX_BAD_CONNECTION_KEY);
    OK(mx_connect(side.endpoint, other.nic, other.endpoint, KEY, LONG, &peer));
    CHECK(memcmp(&peer, &side.peer, sizeof peer) == 0);
    /* The connection has suffered nothing. */
    meet(side);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, ask, ask);
    printf("ok\n");
    return 0;
}
