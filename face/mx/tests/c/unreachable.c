/* Two endpoints that lose all paths to each other: says what the handler of errors is told. Usage: unreachable ether */
#include "check.h"

enum { BYTES = 1 << 20 };

static unsigned char bytes[BYTES];

static mx_return_t tell(char *text, mx_return_t code)
{
    puts(text);
    return code;
}

static mx_return_t be_quiet(char *text, mx_return_t code)
{
    (void)text;
    return code;
}

/* What all paths were cut for ends with an error. */
static void fail(struct side side, mx_request_t request)
{
    mx_status_t status;
    uint32_t result = 0;
    mx_wait(side.endpoint, &request, LONG, &status, &result);
    CHECK(result == 1 && status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
}

static void first(struct side side)
{
    char line[16];
    meet(side);
    /* Both sides join their paths. */
    usleep(300000);
    puts("at its end");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    mx_set_error_handler(tell);
    fail(side, begin_send(side, bytes, BYTES, 1));
    mx_set_error_handler(MX_ERRORS_RETURN);
}

static void second(struct side side)
{
    meet(side);
    mx_set_error_handler(be_quiet);
    /* A receive is from anybody: a message to who is gone finds that out. */
    sleep(1);
    fail(side, begin_send(side, bytes, BYTES, 2));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    both(argv[1], NULL, 0, first, second);
    puts("ok");
    return 0;
}
