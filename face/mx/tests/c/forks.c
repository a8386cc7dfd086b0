/* A child has a library of its own where nothing lives of its parent's, and none where something does.
 * usage: forks MEDIUM */
#include "check.h"

static char buffer[3000];

static mx_endpoint_t open_number(uint32_t number)
{
    mx_endpoint_t endpoint;
    OK(mx_open_endpoint(0, number, KEY, NULL, 0, &endpoint));
    return endpoint;
}

/* A whole life. */
static void use_it(void)
{
    struct side side;
    mx_request_t request;
    OK(mx_init());
    side.endpoint = open_number(7);
    OK(mx_get_endpoint_addr(side.endpoint, &side.peer));
    request = begin_receive(side, buffer, sizeof buffer, 1, ALL);
    send_one(side, "to me", 6, 1);
    CHECK(finish(side, request).xfer_length == 6 && strcmp(buffer, "to me") == 0);
    OK(mx_close_endpoint(side.endpoint));
    OK(mx_finalize());
}

static void talk_on(struct side side)
{
    mx_request_t request = begin_receive(side, buffer, sizeof buffer, 2, ALL);
    send_one(side, "across", 7, 2);
    CHECK(finish(side, request).xfer_length == 7);
    meet(side);
}

static void in_child(void (*what)(void))
{
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(4 * HANG_SECONDS);
        what();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static mx_endpoint_t copied;

static void is_none(void)
{
    mx_endpoint_t endpoint;
    CHECK(mx_init() == MX_FAILURE);
    CHECK(mx_open_endpoint(0, 1, KEY, NULL, 0, &endpoint) == MX_NOT_INITIALIZED);
    CHECK(mx_close_endpoint(copied) == MX_NOT_INITIALIZED);
    CHECK(mx_finalize() == MX_NOT_INITIALIZED);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    CHECK(mx_set_error_handler(MX_ERRORS_RETURN) == MX_ERRORS_ARE_FATAL);
    alarm(4 * HANG_SECONDS);
    choose_board(words[1], base_port(), 0);
    use_it();
    in_child(use_it);
    /* Both after a life of the parent's, and with each other. */
    both(words[1], NULL, 0, talk_on, talk_on);
    OK(mx_init());
    in_child(is_none);
    copied = open_number(0);
    in_child(is_none);
    /* An endpoint outlives the library. */
    OK(mx_finalize());
    in_child(is_none);
    OK(mx_close_endpoint(copied));
    in_child(use_it);
    use_it();
    printf("ok\n");
    return 0;
}
