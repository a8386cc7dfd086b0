/* Long and short messages between two hosts while one of the networks between them is cut. Who runs it cuts and mends at
 * each line that is said, and answers with a line. Usage: paths ether */
#include "check.h"

enum { ROUNDS = 60, BYTES = 1 << 20, SHORT = 100 };

static unsigned char bytes[BYTES];

/* Messages of both lengths in turn. */
static size_t length_of(unsigned round)
{
    return round % 3 == 2 ? SHORT : BYTES;
}

static void first(struct side side)
{
    char line[16];
    unsigned round;
    for (round = 0; round < ROUNDS; round++) {
        size_t length = length_of(round);
        if (round % 20 == 10) {
            printf("at %u\n", round);
            fflush(stdout);
            CHECK(fgets(line, sizeof line, stdin) != NULL);
        }
        fill(bytes, length, round);
        send_one(side, bytes, length, round);
        CHECK(receive_one(side, bytes, BYTES, round).xfer_length == length);
        CHECK(is_filled(bytes, length, round + 1000));
    }
}

static void second(struct side side)
{
    unsigned round;
    for (round = 0; round < ROUNDS; round++) {
        size_t length = length_of(round);
        CHECK(receive_one(side, bytes, BYTES, round).xfer_length == length);
        CHECK(is_filled(bytes, length, round));
        fill(bytes, length, round + 1000);
        send_one(side, bytes, length, round);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    both(argv[1], NULL, 0, first, second);
    puts("ok");
    return 0;
}
