/* What was reported as sent arrives, though the sender closes and ends at once. usage: closing MEDIUM */
#include "check.h"

#define COUNT 300
static unsigned char buffer[20000];

static void first(struct side side)
{
    /* The other one has connected: nobody connects to who is gone. */
    meet(side);
    for (unsigned number = 0; number < COUNT; number++) {
        size_t bytes = number * 37 % sizeof buffer;
        fill(buffer, bytes, number);
        send_one(side, buffer, bytes, number);
    }
    /* And out. */
}

static void second(struct side side)
{
    meet(side);
    /* All of it waits, and its sender is gone. */
    nap(300);
    for (unsigned number = 0; number < COUNT; number++) {
        size_t bytes = number * 37 % sizeof buffer;
        mx_status_t status = receive_one(side, buffer, sizeof buffer, number);
        CHECK(status.code == MX_STATUS_SUCCESS && status.msg_length == bytes);
        CHECK(is_filled(buffer, bytes, number));
    }
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
