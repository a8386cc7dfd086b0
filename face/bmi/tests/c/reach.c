/* Peers that cannot be reached, or are gone, and what waits for them. Usage: reach CASE tcp|shm */
#include "check.h"
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

static bmi_context_id context;

static void begin(void)
{
    alarm(4 * HANG_SECONDS);
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
}

/* A socket that listens at a port which nobody has; the port. */
static int free_port(int *listener)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(*listener >= 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(*listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(*listener, 8) == 0);
    CHECK(getsockname(*listener, (struct sockaddr *)&address, &length) == 0);
    return ntohs(address.sin_port);
}

/* A URL of this medium that nobody is behind. */
static void deserted(const char *medium, char *url, size_t room)
{
    int listener;
    if (strcmp(medium, "tcp") == 0) {
        snprintf(url, room, "tcp://127.0.0.1:%d", free_port(&listener));
        close(listener);
    } else {
        snprintf(url, room, "%s://reach-%d", medium, (int)getpid());
    }
}

/* A receive that is under way, or has failed at once. */
struct Wait {
    int posted;
    bmi_op_id_t id;
    char byte;
    bmi_size_t got;
};

static void await(struct Wait *wait, BMI_addr_t from, int tag)
{
    wait->id = 0;
    wait->got = -1;
    wait->posted = BMI_post_recv(&wait->id, from, &wait->byte, 1, &wait->got, BMI_EXT_ALLOC, tag,
                                 NULL, context, NULL);
}

static int ending(struct Wait *wait)
{
    return finish(wait->posted, wait->id, &wait->got, context);
}

/* A server in a child, which listens at `url` and answers `count` messages; then it waits for its end. */
static pid_t serve_in_child(const char *medium, const char *url, int count)
{
    int ends[2];
    char byte;
    pid_t child;
    CHECK(pipe(ends) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char methods[32];
        alarm(4 * HANG_SECONDS);
        snprintf(methods, sizeof methods, "bmi_%s", medium);
        CHECK(INITIALIZE(methods, url, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC) == 0);
        CHECK(BMI_open_context(&context) == 0);
        CHECK(write(ends[1], "r", 1) == 1);
        for (; count > 0; count--) {
            struct BMI_unexpected_info info = wait_unexpected();
            CHECK(send_to(info.addr, "a", 1, info.tag, context) == 0);
            CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
        }
        for (;;)
            pause();
    }
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    return child;
}

static void kill_child(pid_t child)
{
    int status = 0;
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
}

/* ---- nobody is there ---- */

static void deserted_receives(const char *medium)
{
    static char large[100000];
    enum { MANY = 200 };
    static struct Wait many[MANY];
    struct Wait before, after;
    bmi_op_id_t send = 0;
    char url[128];
    BMI_addr_t peer;
    int posted, index;
    deserted(medium, url, sizeof url);
    begin();
    CHECK(LOOKUP(&peer, url) == 0);
    await(&before, peer, 1);
    CHECK(ending(&before) == -BMI_EHOSTUNREACH);
    /* Beside a send, before it and after it, with this and another tag. */
    await(&before, peer, 1);
    posted = BMI_post_send(&send, peer, large, sizeof large, BMI_EXT_ALLOC, 1, NULL, context, NULL);
    await(&after, peer, 2);
    CHECK(finish(posted, send, NULL, context) == -BMI_EHOSTUNREACH);
    CHECK(ending(&before) == -BMI_EHOSTUNREACH);
    CHECK(ending(&after) == -BMI_EHOSTUNREACH);
    for (index = 0; index < MANY; index++)
        await(&many[index], peer, index % 3);
    for (index = 0; index < MANY; index++)
        CHECK(ending(&many[index]) == -BMI_EHOSTUNREACH);
    CHECK(BMI_finalize() == 0);
}

/* ---- a server is gone ---- */

static void server_gone(const char *medium)
{
    char url[128];
    struct Wait wait, other;
    BMI_addr_t peer;
    pid_t child;
    int error;
    deserted(medium, url, sizeof url);
    child = serve_in_child(medium, url, 1);
    begin();
    CHECK(LOOKUP(&peer, url) == 0);
    /* A receive alone makes the connection; and one that has its message is over. */
    await(&wait, peer, 5);
    CHECK(send_unexpected_to(peer, "q", 1, 5, context) == 0);
    CHECK(ending(&wait) == 0 && wait.got == 1 && wait.byte == 'a');
    /* Of two that wait while it dies and after it, neither waits for ever. */
    await(&other, peer, 6);
    CHECK(other.posted == 0);
    kill_child(child);
    CHECK(ending(&other) == -BMI_ECONNRESET);
    await(&wait, peer, 5);
    error = ending(&wait);
    CHECK(error == -BMI_EHOSTUNREACH || error == -BMI_ECONNRESET);
    await(&wait, peer, 5);
    CHECK(ending(&wait) == -BMI_EHOSTUNREACH);
    CHECK(BMI_finalize() == 0);
    /* When it is back it is found by the same address. */
    child = serve_in_child(medium, url, 1);
    begin();
    CHECK(LOOKUP(&peer, url) == 0);
    await(&wait, peer, 7);
    CHECK(wait.posted == 0);
    CHECK(send_unexpected_to(peer, "q", 1, 7, context) == 0);
    CHECK(ending(&wait) == 0 && wait.byte == 'a');
    CHECK(BMI_finalize() == 0);
    kill_child(child);
}

/* ---- somebody else is there ---- */

struct Stranger {
    int listener, rounds;
    const char *says;
    size_t length;
};

/* Answers whoever connects in its own words. */
static void *babble(void *argument)
{
    struct Stranger *stranger = (struct Stranger *)argument;
    for (; stranger->rounds > 0; stranger->rounds--) {
        char heard[512];
        int connection = accept(stranger->listener, NULL, NULL);
        CHECK(connection >= 0);
        CHECK(write(connection, stranger->says, stranger->length) == (ssize_t)stranger->length);
        while (read(connection, heard, sizeof heard) > 0)
            ;
        close(connection);
    }
    return NULL;
}

static void strangers(const char *medium)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\nServer: another one\r\n"
                                 "Content-Type: text/plain\r\nContent-Length: 0\r\n\r\n";
    static const char zeros[256];
    struct Stranger all[2] = {{-1, 2, answer, sizeof answer - 1}, {-1, 2, zeros, sizeof zeros}};
    int index;
    CHECK(strcmp(medium, "tcp") == 0);
    begin();
    for (index = 0; index < 2; index++) {
        struct Wait wait;
        BMI_addr_t peer;
        pthread_t thread;
        char url[128];
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port(&all[index].listener));
        CHECK(pthread_create(&thread, NULL, babble, &all[index]) == 0);
        CHECK(LOOKUP(&peer, url) == 0);
        CHECK(send_unexpected_to(peer, "q", 1, 5, context) == -BMI_EPROTO);
        await(&wait, peer, 5);
        CHECK(ending(&wait) == -BMI_EPROTO);
        CHECK(pthread_join(thread, NULL) == 0);
        close(all[index].listener);
        /* Nobody is there any more. */
        CHECK(send_unexpected_to(peer, "q", 1, 5, context) == -BMI_EHOSTUNREACH);
    }
    CHECK(BMI_finalize() == 0);
}

/* ---- a path behind the port ---- */

static void paths(const char *medium)
{
    char url[128], named[160];
    struct Wait wait;
    BMI_addr_t peer;
    pid_t child;
    CHECK(strcmp(medium, "tcp") == 0);
    deserted(medium, url, sizeof url);
    snprintf(named, sizeof named, "%s/files-a", url);
    child = serve_in_child(medium, named, 2);
    begin();
    CHECK(LOOKUP(&peer, named) == 0);
    CHECK(strcmp(BMI_addr_rev_lookup(peer), named) == 0);
    CHECK(strcmp(BMI_addr_rev_lookup_unexpected(peer), "127.0.0.1") == 0);
    await(&wait, peer, 5);
    CHECK(send_unexpected_to(peer, "q", 1, 5, context) == 0);
    CHECK(ending(&wait) == 0 && wait.byte == 'a');
    snprintf(named, sizeof named, "ib://nobody:1/b,%s/b/c", url);
    CHECK(LOOKUP(&peer, named) == 0);
    await(&wait, peer, 6);
    CHECK(send_unexpected_to(peer, "q", 1, 6, context) == 0);
    CHECK(ending(&wait) == 0 && wait.byte == 'a');
    CHECK(LOOKUP(&peer, "tcp://127.0.0.1/files") == -BMI_EINVAL);
    CHECK(BMI_finalize() == 0);
    kill_child(child);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *);
    } cases[] = {
        {"deserted", deserted_receives},
        {"server_gone", server_gone},
        {"strangers", strangers},
        {"paths", paths},
    };
    size_t index;
    CHECK(argc == 3);
    for (index = 0; index < sizeof cases / sizeof cases[0]; index++)
        if (strcmp(argv[1], cases[index].name) == 0) {
            cases[index].run(argv[2]);
            puts("ok");
            return 0;
        }
    return 1;
}
