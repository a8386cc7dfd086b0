/* A client and a server that lose all paths to each other: says why, as the library has it. Usage: unreachable */
#include "check.h"

enum { TAG = 7 };

static bmi_context_id context;

static int is_lost(int error)
{
    return error == -BMI_ECONNRESET || error == -BMI_EHOSTUNREACH;
}

static void server(const char *medium, int say)
{
    char bytes[16];
    bmi_size_t got = 0;
    struct BMI_unexpected_info info;
    const char *url = told("PATHS_URL");
    (void)medium;
    enter_namespace(told("PATHS_NAMESPACE"));
    CHECK(INITIALIZE(told("PATHS_METHOD"), told("PATHS_LISTEN"),
                     BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC | BMI_AUTO_REF_COUNT) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(write(say, url, strlen(url)) == (ssize_t)strlen(url));
    info = wait_unexpected();
    CHECK(send_to(info.addr, "hello", 5, TAG, context) == 0);
    /* It comes to this only when all is cut. */
    CHECK(is_lost(receive_from(info.addr, bytes, sizeof bytes, &got, TAG, context)));
    BMI_close_context(context);
    CHECK(BMI_finalize() == 0);
}

static void client(const char *url)
{
    static char bytes[1 << 20];
    char line[16], *why = bytes;
    BMI_addr_t to;
    bmi_size_t got = 0;
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(LOOKUP(&to, url) == 0);
    CHECK(BMI_get_info(to, BMI_WHY_UNREACHABLE, &why) == 0 && why == NULL);
    CHECK(BMI_get_info(to + 1, BMI_WHY_UNREACHABLE, &why) == -BMI_EINVAL);
    CHECK(send_unexpected_to(to, "hello", 5, TAG, context) == 0);
    CHECK(receive_from(to, bytes, sizeof bytes, &got, TAG, context) == 0 && got == 5);
    /* Both sides join their paths. */
    usleep(300000);
    puts("at its end");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    CHECK(is_lost(send_to(to, bytes, sizeof bytes, TAG, context)));
    CHECK(BMI_get_info(to, BMI_WHY_UNREACHABLE, &why) == 1 && why != NULL);
    puts(why);
    free(why);
    BMI_close_context(context);
    CHECK(BMI_finalize() == 0);
}

int main(void)
{
    both("", server, client);
    puts("ok");
    return 0;
}
