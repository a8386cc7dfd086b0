/* Two users on one board, or two processes of one user that may not look at each other's memory.
 * usage: users shared|apart|untraced */
#include "check.h"

#define NOBODY 65534

static mx_endpoint_t open_number(uint32_t number)
{
    mx_endpoint_t endpoint;
    OK(mx_init());
    OK(mx_open_endpoint(0, number, KEY, NULL, 0, &endpoint));
    return endpoint;
}

/* Memory is shared between processes of one user. */
static void is_refused(mx_endpoint_t endpoint, struct place there)
{
    mx_endpoint_addr_t peer;
    mx_request_t request = NULL;
    mx_status_t status;
    uint32_t result = 0;
    CHECK(mx_connect(endpoint, there.nic, there.endpoint, KEY, LONG, &peer) == MX_NO_PERM);
    OK(mx_iconnect(endpoint, there.nic, there.endpoint, KEY, 1, NULL, &request));
    OK(mx_wait(endpoint, &request, LONG, &status, &result));
    CHECK(result == 1 && status.code == MX_STATUS_REJECTED);
    /* Nobody has that one. */
    CHECK(mx_connect(endpoint, there.nic, 9, KEY, LONG, &peer) == MX_CONNECTION_FAILED);
}

int main(int count, char **words)
{
    int down[2], status = 0, shared, untraced;
    char board[64], buffer[8];
    struct place place;
    struct side side;
    pid_t child;
    CHECK(count == 2);
    memset(&side, 0, sizeof side);
    if (geteuid() != 0) {
        printf("SKIP: only root may become another user\n");
        return 0;
    }
    untraced = strcmp(words[1], "untraced") == 0;
    shared = untraced || strcmp(words[1], "shared") == 0;
    CHECK(mx_set_error_handler(MX_ERRORS_RETURN) == MX_ERRORS_ARE_FATAL);
    snprintf(board, sizeof board, "udp://127.0.0.1:%d", base_port());
    CHECK(setenv("ROPEWALK_MX_BOARDS", board, 1) == 0);
    CHECK(setenv("OMX_DISABLE_SHARED", shared ? "0" : "1", 1) == 0);
    CHECK(pipe(down) == 0);
    child = fork();
    CHECK(child >= 0);
    /* Who was somebody else before is looked at by nobody but root. */
    if (child == 0 || untraced)
        CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    alarm(4 * HANG_SECONDS);
    if (child == 0) {
        CHECK(read(down[0], &place, sizeof place) == (ssize_t)sizeof place);
        side.endpoint = open_number(1);
        if (shared) {
            is_refused(side.endpoint, place);
        } else {
            side.peer = reach(side.endpoint, place);
            send_one(side, "across", 7, 1);
            CHECK(receive_one(side, buffer, sizeof buffer, 2).xfer_length == 5);
        }
    } else {
        side.endpoint = open_number(0);
        place = place_of(side.endpoint);
        CHECK(write(down[1], &place, sizeof place) == (ssize_t)sizeof place);
        if (!shared) {
            side.peer = receive_one(side, buffer, sizeof buffer, 1).source;
            CHECK(strcmp(buffer, "across") == 0);
            send_one(side, "back", 5, 2);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    OK(mx_close_endpoint(side.endpoint));
    OK(mx_finalize());
    if (child != 0)
        printf("ok\n");
    return 0;
}
