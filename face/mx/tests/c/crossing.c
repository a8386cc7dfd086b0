/* Both sides connect at once, and again in the midst of messages: whichever way each of them goes, messages stay in
 * order. `closed`: an endpoint that nobody has is known to be closed, since the medium is one where MXoE is spoken.
 * usage: crossing MEDIUM [closed] */
#include "check.h"

#define MESSAGES 400
#define LONGEST 60000

static int asks_closed;

static size_t length_of(int number)
{
    static const size_t lengths[] = {0, 20, 100, 3000, 20000, LONGEST};
    return lengths[number % 6];
}

static void cross(struct side side)
{
    static unsigned char out[MESSAGES / 8][LONGEST], into[LONGEST];
    mx_request_t sent[MESSAGES];
    mx_endpoint_addr_t again;
    struct place other;
    double start;
    int number;
    OK(mx_decompose_endpoint_addr(side.peer, &other.nic, &other.endpoint));
    for (number = 0; number < MESSAGES; number++) {
        unsigned char *place = out[number % (MESSAGES / 8)];
        mx_status_t status;
        if (number >= MESSAGES / 8)
            CHECK(finish(side, sent[number - MESSAGES / 8]).code == MX_STATUS_SUCCESS);
        fill(place, length_of(number), (unsigned)number);
        sent[number] = begin_send(side, place, length_of(number), (uint64_t)number);
        if (number % 50 == 7) {
            OK(mx_connect(side.endpoint, other.nic, other.endpoint, KEY, LONG, &again));
            CHECK(memcmp(&again, &side.peer, sizeof again) == 0);
        }
        /* Whatever comes is the next one. */
        status = finish(side, begin_receive(side, into, sizeof into, 0, 0));
        CHECK(status.code == MX_STATUS_SUCCESS && status.match_info == (uint64_t)number);
        CHECK(status.xfer_length == length_of(number));
        CHECK(is_filled(into, length_of(number), (unsigned)number));
    }
    for (number = MESSAGES - MESSAGES / 8; number < MESSAGES; number++)
        CHECK(finish(side, sent[number]).code == MX_STATUS_SUCCESS);
    meet(side);
    if (!asks_closed)
        return;
    start = now();
    CHECK(mx_connect(side.endpoint, other.nic, 77, KEY, LONG, &again) == MX_CONNECTION_FAILED);
    CHECK(now() - start < 2);
    meet(side);
}

int main(int count, char **words)
{
    CHECK(count == 2 || count == 3);
    asks_closed = count == 3;
    both(words[1], NULL, 0, cross, cross);
    printf("ok\n");
    return 0;
}
