/* Long and short messages between two hosts while one of the paths between them is cut. Who runs it cuts and mends at each
 * line that is said, and answers with a line. Usage: paths */
#include "check.h"

enum { ROUNDS = 60, LONG = 1 << 20, SHORT = 100, TAG = 7 };

static bmi_context_id context;

static void fill(unsigned char *bytes, int length, int seed)
{
    int at;
    for (at = 0; at < length; at++)
        bytes[at] = (unsigned char)(seed * 31 + at * 7 + (at >> 8));
}

static void check_filled(const unsigned char *bytes, int length, int seed)
{
    int at;
    for (at = 0; at < length; at++)
        CHECK(bytes[at] == (unsigned char)(seed * 31 + at * 7 + (at >> 8)));
}

/* Messages of both lengths in turn, which do not overtake each other. */
static int length_of(int round)
{
    return round % 3 == 2 ? SHORT : LONG;
}

static void server(const char *medium, int say)
{
    unsigned char *bytes = (unsigned char *)malloc(LONG);
    struct BMI_unexpected_info info;
    const char *url = told("PATHS_URL");
    int round;
    (void)medium;
    enter_namespace(told("PATHS_NAMESPACE"));
    CHECK(INITIALIZE(told("PATHS_METHOD"), told("PATHS_LISTEN"),
                     BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC | BMI_AUTO_REF_COUNT) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(write(say, url, strlen(url)) == (ssize_t)strlen(url));
    info = wait_unexpected();
    for (round = 0; round < ROUNDS; round++) {
        bmi_size_t got = 0;
        CHECK(receive_from(info.addr, bytes, LONG, &got, TAG, context) == 0);
        CHECK(got == length_of(round));
        check_filled(bytes, (int)got, round);
        fill(bytes, (int)got, round + 1000);
        CHECK(send_to(info.addr, bytes, got, TAG, context) == 0);
    }
    BMI_close_context(context);
    CHECK(BMI_finalize() == 0);
    free(bytes);
}

static void client(const char *url)
{
    unsigned char *bytes = (unsigned char *)malloc(LONG);
    char line[16];
    BMI_addr_t to;
    int round;
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(LOOKUP(&to, url) == 0);
    CHECK(send_unexpected_to(to, "hello", 5, TAG, context) == 0);
    for (round = 0; round < ROUNDS; round++) {
        bmi_size_t got = 0;
        if (round % 20 == 10) {
            printf("at %d\n", round);
            fflush(stdout);
            CHECK(fgets(line, sizeof line, stdin) != NULL);
        }
        fill(bytes, length_of(round), round);
        CHECK(send_to(to, bytes, length_of(round), TAG, context) == 0);
        CHECK(receive_from(to, bytes, LONG, &got, TAG, context) == 0);
        CHECK(got == length_of(round));
        check_filled(bytes, (int)got, round + 1000);
    }
    BMI_close_context(context);
    CHECK(BMI_finalize() == 0);
    free(bytes);
}

int main(void)
{
    both("", server, client);
    puts("ok");
    return 0;
}
