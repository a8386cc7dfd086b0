/* Hosts that nobody has listed: an agent has found them. usage: names MEDIUM */
#include "check.h"

static void look(struct side side)
{
    char name[MX_MAX_HOSTNAME_LEN], own[MX_MAX_HOSTNAME_LEN];
    uint32_t endpoint, session;
    uint64_t other, mine, found = 0;
    double start = now();
    OK(mx_decompose_endpoint_addr2(side.peer, &other, &endpoint, &session));
    while (mx_nic_id_to_hostname(other, name) != MX_SUCCESS) {
        CHECK(now() - start < HANG_SECONDS);
        usleep(20000);
    }
    CHECK(strchr(name, ':') != NULL);
    OK(mx_board_number_to_nic_id(0, &mine));
    OK(mx_nic_id_to_hostname(mine, own));
    /* A name that is our own board's, too, is ours. */
    OK(mx_hostname_to_nic_id(name, &found));
    CHECK(found == (strcmp(name, own) == 0 ? mine : other));
    CHECK(mx_hostname_to_nic_id("nobody:0", &found) == MX_HOST_NOT_FOUND);
    CHECK(mx_nic_id_to_hostname(0x0200deadbeefULL, name) == MX_HOST_NOT_FOUND);
    /* Neither goes before both have seen that. */
    meet(side);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, look, look);
    printf("ok\n");
    return 0;
}
