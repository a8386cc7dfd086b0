/* Another user has taken the names that an agent and an endpoint have: the endpoint is busy, what the agent says is not
 * believed, and messages go on. usage: strangers ether */
#include "check.h"
#include <net/if.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* A socket with an abstract name of this interface. */
static int hold(int kind, const char *format)
{
    struct sockaddr_un address;
    socklen_t length;
    int it = socket(AF_UNIX, kind, 0);
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, format, if_nametoindex("one"));
    length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(address.sun_path + 1));
    CHECK(it >= 0 && bind(it, (struct sockaddr *)&address, length) == 0);
    return it;
}

/* Says to everybody who asks for a card that it is this one, as the agent would. */
static void lie(int up)
{
    static const unsigned char answer[9] = {4, 0xef, 0xbe, 0xad, 0xde, 0x00, 0x02, 0x00, 0x00};
    char question[256];
    int listener, client;
    CHECK(setresuid(65534, 65534, 65534) == 0);
    hold(SOCK_DGRAM, "ropewalk/mxoe/%u/5");
    listener = hold(SOCK_SEQPACKET, "ropewalk/mxoe/%u/agent");
    CHECK(listen(listener, 64) == 0 && write(up, "r", 1) == 1);
    for (;;) {
        client = accept(listener, NULL, NULL);
        CHECK(client >= 0);
        if (recv(client, question, sizeof question, 0) > 0 && question[0] == 4)
            CHECK(send(client, answer, sizeof answer, MSG_NOSIGNAL) >= 0 || errno == EPIPE);
    }
}

static void to_oneself(void)
{
    struct side side;
    char nobody[] = "nobody:7", byte = 7, room = 0;
    uint64_t nic;
    OK(mx_init());
    CHECK(mx_hostname_to_nic_id(nobody, &nic) == MX_HOST_NOT_FOUND);
    CHECK(mx_open_endpoint(0, 5, KEY, NULL, 0, &side.endpoint) == MX_BUSY);
    OK(mx_open_endpoint(0, 4, KEY, NULL, 0, &side.endpoint));
    OK(mx_get_endpoint_addr(side.endpoint, &side.peer));
    CHECK(mx_hostname_to_nic_id(nobody, &nic) == MX_HOST_NOT_FOUND);
    mx_request_t receive = begin_receive(side, &room, 1, 1, ALL);
    send_one(side, &byte, 1, 1);
    CHECK(finish(side, receive).code == MX_STATUS_SUCCESS && room == 7);
    OK(mx_close_endpoint(side.endpoint));
    OK(mx_finalize());
}

int main(int count, char **words)
{
    int up[2];
    char ready;
    pid_t child;
    CHECK(count == 2 && strcmp(words[1], "ether") == 0 && pipe(up) == 0);
    alarm(HANG_SECONDS);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(HANG_SECONDS);
        lie(up[1]);
    }
    CHECK(read(up[0], &ready, 1) == 1);
    choose_board("ether", 0, 0);
    CHECK(unsetenv("OMX_DISABLE_SHARED") == 0);
    to_oneself();
    CHECK(kill(child, SIGKILL) == 0);
    printf("ok\n");
    return 0;
}
