/* What the test programs share: checks that end the program, waiting, and a server in a process of its
 * own that is told apart by its URL.
 */
#ifndef CHECK_H
#define CHECK_H

#include <bmi.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s (process %d)\n", __FILE__, __LINE__, #condition,           \
                    (int)getpid());                                                               \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

#ifndef HANG_SECONDS
#define HANG_SECONDS 60
#endif

#ifdef BMI_API_ORANGEFS
#define INITIALIZE(methods, listen, flags) BMI_initialize(methods, listen, flags, NULL)
/* That header has no name for it. */
#define GET_PORT 18
#define LOOKUP(out, url) BMI_addr_lookup(out, url, NULL)
#else
#define INITIALIZE(methods, listen, flags) BMI_initialize(methods, listen, flags)
#define GET_PORT BMI_TCP_GET_PORT
#define LOOKUP(out, url) BMI_addr_lookup(out, url)
#endif

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The error of an operation that a post returned `posted` for. */
static inline int finish(int posted, bmi_op_id_t id, bmi_size_t *size, bmi_context_id context)
{
    int count = 0;
    bmi_error_code_t error = 0;
    double start = now();
    if (posted != 0)
        return posted == 1 ? 0 : posted;
    CHECK(id != 0);
    while (count == 0) {
        bmi_size_t moved = 0;
        void *user = NULL;
        int result = BMI_test(id, &count, &error, &moved, &user, 100, context);
        CHECK(result >= 0 && result == count);
        if (count > 0 && size != NULL)
            *size = moved;
        CHECK(now() - start < HANG_SECONDS);
    }
    return error;
}

static inline int send_to(BMI_addr_t to, const void *bytes, bmi_size_t size, int tag,
                          bmi_context_id context)
{
    bmi_op_id_t id = 0;
    int posted = BMI_post_send(&id, to, bytes, size, BMI_EXT_ALLOC, tag, NULL, context, NULL);
    return finish(posted, id, NULL, context);
}

static inline int receive_from(BMI_addr_t from, void *bytes, bmi_size_t size, bmi_size_t *got,
                               int tag, bmi_context_id context)
{
    bmi_op_id_t id = 0;
    int posted =
        BMI_post_recv(&id, from, bytes, size, got, BMI_EXT_ALLOC, tag, NULL, context, NULL);
    return finish(posted, id, got, context);
}

static inline int send_unexpected_to(BMI_addr_t to, const void *bytes, bmi_size_t size, int tag,
                                     bmi_context_id context)
{
    bmi_op_id_t id = 0;
    int posted =
        BMI_post_sendunexpected(&id, to, bytes, size, BMI_EXT_ALLOC, tag, NULL, context, NULL);
    return finish(posted, id, NULL, context);
}

static inline struct BMI_unexpected_info wait_unexpected(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    double start = now();
    while (count == 0) {
        CHECK(BMI_testunexpected(1, &count, &info, 100) >= 0);
        CHECK(now() - start < HANG_SECONDS);
    }
    CHECK(info.error_code == 0);
    return info;
}

/* A name that who runs the program chose; over ether: the server's interface with its endpoint, its URL, its network
 * namespace, and the station of the client. */
static inline const char *told(const char *name)
{
    const char *value = getenv(name);
    CHECK(value != NULL);
    return value;
}

static inline void enter_namespace(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    /* As a system call: the function's declaration is not for every program that includes this. */
    CHECK(file >= 0 && syscall(SYS_setns, file, 0) == 0);
    close(file);
}

/* Initializes a server of this medium (tcp6 is tcp by the other family) and says its URL. */
static inline void serve(const char *medium, char *url, size_t room)
{
    const char *host = strcmp(medium, "tcp6") == 0 ? "[::1]" : "127.0.0.1";
    char methods[32], listen[256];
    snprintf(methods, sizeof methods, "bmi_%s", strcmp(medium, "tcp6") == 0 ? "tcp" : medium);
    if (strcmp(medium, "ether") == 0) {
        enter_namespace(told("ETHER_NAMESPACE"));
        snprintf(listen, sizeof listen, "%s", told("ETHER_LISTEN"));
    } else if (strncmp(medium, "tcp", 3) == 0)
        snprintf(listen, sizeof listen, "tcp://%s", host);
    else if (strcmp(medium, "udp") == 0)
        snprintf(listen, sizeof listen, "udp://%s:%d", host, 20000 + (int)getpid() % 12000);
    else
        snprintf(listen, sizeof listen, "%s://check-%d", medium, (int)getpid());
    CHECK(INITIALIZE(methods, listen,
                     BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC | BMI_AUTO_REF_COUNT) == 0);
    snprintf(url, room, "%s", strcmp(medium, "ether") == 0 ? told("ETHER_URL") : listen);
    if (strncmp(medium, "tcp", 3) == 0) {
        int port = 0;
        CHECK(BMI_get_info(0, GET_PORT, &port) == 0 && port > 0);
        snprintf(url, room, "tcp://%s:%d", host, port);
    }
}

/* A URL where nobody answers before the program ends: over tcp a connection is made, and that is all. 1 where a
 * peer like that is noticed soon, since there is nobody at all. */
static inline int unanswered(const char *medium, char *url, size_t room)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int listener;
    snprintf(url, room, "%s://nobody-is-here", medium);
    if (strcmp(medium, "tcp") != 0)
        return 1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    snprintf(url, room, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    return 0;
}

/* Runs both sides, the server in a child that begins with `server(medium, pipe)`; it writes its URL. */
static inline void both(const char *medium, void (*server)(const char *, int),
                        void (*client)(const char *))
{
    int ends[2], status = 0;
    char url[512];
    ssize_t length;
    pid_t child;
    CHECK(pipe(ends) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[0]);
        alarm(4 * HANG_SECONDS);
        server(medium, ends[1]);
        exit(0);
    }
    close(ends[1]);
    alarm(4 * HANG_SECONDS);
    length = read(ends[0], url, sizeof url - 1);
    CHECK(length > 0);
    url[length] = '\0';
    client(url);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
