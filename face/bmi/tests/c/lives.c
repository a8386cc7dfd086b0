/* The lives of addresses and of the library: what is closed and made again, by either side, dies and comes
 * back, has several names, or never was. Usage: lives CASE tcp|shm */
#include "check.h"
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

static bmi_context_id context;

/* ---- a server in a process of its own, forked before there is a library here ---- */

struct Server {
    pid_t process;
    int orders, answers;
    char url[512];
};

static struct Server prepare(const char *medium, void (*act)(void))
{
    struct Server server;
    int orders[2], answers[2];
    CHECK(pipe(orders) == 0 && pipe(answers) == 0);
    server.process = fork();
    CHECK(server.process >= 0);
    if (server.process == 0) {
        char own[512], methods[32];
        ssize_t length;
        alarm(4 * HANG_SECONDS);
        length = read(orders[0], own, sizeof own - 1);
        if (length <= 0)
            exit(0);
        own[length] = '\0';
        if (own[0] == '*') {
            serve(medium, own, sizeof own);
        } else {
            snprintf(methods, sizeof methods, "bmi_%s", medium);
            CHECK(INITIALIZE(methods, own,
                             BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC | BMI_AUTO_REF_COUNT) == 0);
        }
        CHECK(BMI_open_context(&context) == 0);
        CHECK(write(answers[1], own, strlen(own)) > 0);
        act();
        exit(0);
    }
    close(orders[0]);
    close(answers[1]);
    server.orders = orders[1];
    server.answers = answers[0];
    return server;
}

/* Lets a server listen at a URL, or wherever it likes where `url` is "*". */
static void launch(struct Server *server, const char *url)
{
    ssize_t length;
    CHECK(write(server->orders, url, strlen(url)) > 0);
    length = read(server->answers, server->url, sizeof server->url - 1);
    CHECK(length > 0);
    server->url[length] = '\0';
    close(server->orders);
    close(server->answers);
}

static struct Server start(const char *medium, void (*act)(void))
{
    struct Server server = prepare(medium, act);
    launch(&server, "*");
    return server;
}

static void end(struct Server *server, int by_signal)
{
    int status = 0;
    CHECK(waitpid(server->process, &status, 0) == server->process);
    if (by_signal != 0)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == by_signal);
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void begin(void)
{
    alarm(4 * HANG_SECONDS);
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
}

/* Answers each unexpected message with its bytes, as OrangeFS's servers do: the reference that counts the
 * message goes when it is answered. Who asked may be gone. Ends with tag 0. */
static void echo(void)
{
    for (;;) {
        struct BMI_unexpected_info info = wait_unexpected();
        int error = send_to(info.addr, info.buffer, info.size, info.tag, context);
        CHECK(error == 0 || error == -BMI_ECONNRESET || error == -BMI_EPROTO);
        CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
        CHECK(BMI_set_info(info.addr, BMI_DEC_ADDR_REF, NULL) == 0);
        if (info.tag == 0)
            break;
    }
    CHECK(BMI_finalize() == 0);
}

/* A question with `word` in it; the error of the first thing that went wrong. */
static int ask(BMI_addr_t peer, int tag, int word)
{
    int back = -1, posted, error, second;
    bmi_op_id_t receive = 0;
    bmi_size_t got = -1;
    posted = BMI_post_recv(&receive, peer, &back, sizeof back, &got, BMI_EXT_ALLOC, tag, NULL,
                           context, NULL);
    if (posted < 0)
        return posted;
    error = send_unexpected_to(peer, &word, sizeof word, tag, context);
    if (error != 0 && posted == 0)
        CHECK(BMI_cancel(receive, context) == 0);
    second = finish(posted, receive, &got, context);
    if (error == 0 && second == 0)
        CHECK(got == (bmi_size_t)sizeof back && back == word);
    return error != 0 ? error : second;
}

/* A post is refused: at once, or a little later where another thread of the library was at work. */
#define CHECK_REFUSED(post)                                                                       \
    do {                                                                                          \
        int posted_ = (post);                                                                     \
        CHECK(finish(posted_, id, NULL, context) == -BMI_EPROTO);                                 \
    } while (0)

/* Nothing can be posted for this address, in any way, and nothing hangs. */
static void is_nobody(BMI_addr_t nobody)
{
    char bytes[8] = "nothing";
    void *into[2] = {bytes, bytes + 4};
    const void *from[2] = {bytes, bytes + 4};
    bmi_size_t sizes[2] = {4, 4}, got = -1;
    bmi_op_id_t id = 0;
    CHECK_REFUSED(BMI_post_recv(&id, nobody, bytes, 8, &got, BMI_EXT_ALLOC, 1, NULL, context, NULL));
    CHECK(got == 0);
    CHECK_REFUSED(BMI_post_recv_list(&id, nobody, into, sizes, 2, 8, &got, BMI_EXT_ALLOC, 1, NULL, context,
                             NULL));
    CHECK_REFUSED(BMI_post_send(&id, nobody, bytes, 8, BMI_EXT_ALLOC, 1, NULL, context, NULL));
    CHECK_REFUSED(BMI_post_send_list(&id, nobody, from, sizes, 2, 8, BMI_EXT_ALLOC, 1, NULL, context,
                             NULL));
    CHECK_REFUSED(BMI_post_sendunexpected(&id, nobody, bytes, 8, BMI_EXT_ALLOC, 1, NULL, context, NULL));
    CHECK_REFUSED(BMI_post_sendunexpected_list(&id, nobody, from, sizes, 2, 8, BMI_EXT_ALLOC, 1, NULL,
                                       context, NULL));
    /* What was refused is not under way. */
    CHECK(BMI_cancel(id, context) == 0);
    CHECK(BMI_set_info(nobody, BMI_TCP_CLOSE_SOCKET, NULL) == -BMI_EINVAL);
    CHECK(BMI_memalloc(nobody, 8, BMI_SEND) == NULL);
    CHECK(BMI_addr_rev_lookup(nobody) == NULL);
}

static void close_socket(BMI_addr_t peer)
{
    int value = 0;
    CHECK(BMI_set_info(peer, BMI_TCP_CLOSE_SOCKET, &value) == 0);
    is_nobody(peer);
}

/* ---- addresses that never were, or were dropped ---- */

static void nobody(const char *medium)
{
    BMI_addr_t peer;
    bmi_op_id_t ids[2] = {0, 0};
    bmi_size_t got = 0;
    char url[64], bytes[8];
    int posted, error, noticed;
    begin();
    is_nobody(424242);
    is_nobody(0);
    is_nobody(-1);
    noticed = unanswered(medium, url, sizeof url);
    CHECK(LOOKUP(&peer, url) == 0);
    /* A receive that waits for somebody ends with the address. */
    posted = BMI_post_recv(&ids[0], peer, bytes, 8, &got, BMI_EXT_ALLOC, 1, NULL, context, NULL);
    close_socket(peer);
    error = finish(posted, ids[0], &got, context);
    CHECK(error == -BMI_ECANCEL || (noticed && error == -BMI_EHOSTUNREACH));
    CHECK(BMI_finalize() == 0);
    CHECK(BMI_post_recv(&ids[1], peer, bytes, 8, &got, BMI_EXT_ALLOC, 1, NULL, context, NULL) ==
          -BMI_ENETDOWN);
}

/* ---- a client closes its connection and looks its server up again ---- */

static void reconnects(const char *medium)
{
    struct Server server = start(medium, echo);
    BMI_addr_t peer, again;
    int round;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    for (round = 1; round <= 200; round++) {
        CHECK(ask(peer, 7, round) == 0);
        /* Sometimes with nothing between, and with a question that is not awaited. */
        if (round % 3 == 0)
            CHECK(send_unexpected_to(peer, &round, sizeof round, 9, context) == 0);
        close_socket(peer);
        CHECK(LOOKUP(&again, server.url) == 0 && again != peer);
        peer = again;
    }
    CHECK(ask(peer, 0, 1) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

/* ---- the answer to a question of a former connection is nobody's ---- */

static void answer_late(void)
{
    struct BMI_unexpected_info first = wait_unexpected(), second = wait_unexpected();
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    int word = -1, error;
    CHECK(first.addr != second.addr);
    error = send_to(first.addr, "late", 4, first.tag, context);
    CHECK(error == -BMI_ECONNRESET || error == -BMI_EPROTO);
    /* Nor does a receive wait for who will not come again. */
    error = BMI_post_recv(&id, first.addr, &word, sizeof word, &got, BMI_EXT_ALLOC, 50, NULL, context,
                          NULL);
    CHECK(finish(error, id, &got, context) < 0);
    /* What was sent ahead over the former connection is not taken for what comes over this one. */
    CHECK(receive_from(second.addr, &word, sizeof word, &got, 60, context) == 0 && word == 2);
    /* To drop the former one does nothing to this one. */
    (void)BMI_set_info(first.addr, BMI_DEC_ADDR_REF, NULL);
    (void)BMI_set_info(first.addr, BMI_TCP_CLOSE_SOCKET, NULL);
    CHECK(send_to(second.addr, second.buffer, second.size, second.tag, context) == 0);
    CHECK(BMI_unexpected_free(first.addr, first.buffer) == 0);
    CHECK(BMI_unexpected_free(second.addr, second.buffer) == 0);
    CHECK(BMI_set_info(second.addr, BMI_DEC_ADDR_REF, NULL) == 0);
    echo();
}

static void late_answers(const char *medium)
{
    struct Server server = start(medium, answer_late);
    BMI_addr_t peer;
    int one = 1, two = 2;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(send_to(peer, &one, sizeof one, 60, context) == 0);
    CHECK(send_unexpected_to(peer, &one, sizeof one, 5, context) == 0);
    usleep(20000);
    close_socket(peer);
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(send_to(peer, &two, sizeof two, 60, context) == 0);
    CHECK(ask(peer, 5, 2) == 0);
    CHECK(ask(peer, 0, 3) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

/* ---- one server, several names ---- */

static void several_names(const char *medium)
{
    struct Server server = start(medium, echo), again = prepare(medium, echo);
    BMI_addr_t one, two, three;
    bmi_op_id_t ids[2] = {0, 0};
    bmi_size_t got = 0;
    char list[1200], bytes[8];
    int posted[2];
    begin();
    snprintf(list, sizeof list, "ib://nobody:1,%s", server.url);
    CHECK(LOOKUP(&one, server.url) == 0 && LOOKUP(&two, list) == 0 && one != two);
    CHECK(ask(one, 1, 1) == 0 && ask(two, 2, 2) == 0);
    snprintf(list, sizeof list, "%s/,shm://nobody-is-here", server.url);
    CHECK(LOOKUP(&three, list) == 0);
    CHECK(ask(three, 3, 3) == 0);
    posted[0] = BMI_post_recv(&ids[0], one, bytes, 4, &got, BMI_EXT_ALLOC, 8, NULL, context, NULL);
    posted[1] =
        BMI_post_recv(&ids[1], two, bytes + 4, 4, &got, BMI_EXT_ALLOC, 9, NULL, context, NULL);
    /* The first one, which the others are known by, goes; what was posted under another does not. */
    close_socket(one);
    CHECK(finish(posted[0], ids[0], &got, context) == -BMI_ECANCEL);
    CHECK(ask(two, 4, 4) == 0 && ask(three, 5, 5) == 0);
    CHECK(send_unexpected_to(two, "nine", 4, 9, context) == 0);
    CHECK(finish(posted[1], ids[1], &got, context) == 0 && memcmp(bytes + 4, "nine", 4) == 0);
    CHECK(LOOKUP(&one, server.url) == 0 && ask(one, 6, 6) == 0);
    close_socket(two);
    close_socket(three);
    CHECK(ask(one, 7, 7) == 0);
    /* All of them survive a death, whichever was there first. */
    CHECK(LOOKUP(&three, list) == 0 && ask(three, 8, 8) == 0);
    posted[0] = BMI_post_recv(&ids[0], three, bytes, 4, &got, BMI_EXT_ALLOC, 8, NULL, context, NULL);
    CHECK(kill(server.process, SIGKILL) == 0);
    end(&server, SIGKILL);
    CHECK(finish(posted[0], ids[0], &got, context) == -BMI_ECONNRESET);
    launch(&again, server.url);
    CHECK(ask(three, 1, 10) == 0 && ask(one, 2, 11) == 0 && ask(three, 0, 12) == 0);
    CHECK(BMI_finalize() == 0);
    end(&again, 0);
}

/* ---- two addresses of one process are two processes later ---- */

static void names_part(const char *medium)
{
    struct Server first = prepare("tcp", echo), second = prepare("shm", echo);
    BMI_addr_t by_tcp, by_shm;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    char bytes[4], tcp_url[64], shm_url[64], list[200];
    int posted, status, ends[2];
    pid_t process;
    CHECK(strcmp(medium, "tcp") == 0);
    CHECK(pipe(ends) == 0);
    process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        int port = 0;
        snprintf(list, sizeof list, "tcp://127.0.0.1,shm://part-%d", (int)getpid());
        CHECK(INITIALIZE("bmi_tcp,bmi_shm", list,
                         BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC | BMI_AUTO_REF_COUNT) == 0);
        CHECK(BMI_open_context(&context) == 0);
        CHECK(BMI_get_info(0, GET_PORT, &port) == 0);
        CHECK(write(ends[1], &port, sizeof port) > 0);
        echo();
        exit(0);
    }
    CHECK(read(ends[0], &status, sizeof status) > 0);
    snprintf(tcp_url, sizeof tcp_url, "tcp://127.0.0.1:%d", status);
    snprintf(shm_url, sizeof shm_url, "shm://part-%d", (int)process);
    begin();
    CHECK(LOOKUP(&by_tcp, tcp_url) == 0 && LOOKUP(&by_shm, shm_url) == 0);
    CHECK(ask(by_tcp, 1, 1) == 0 && ask(by_shm, 2, 2) == 0 && ask(by_tcp, 3, 3) == 0);
    posted = BMI_post_recv(&id, by_shm, bytes, 4, &got, BMI_EXT_ALLOC, 8, NULL, context, NULL);
    CHECK(kill(process, SIGKILL) == 0 && waitpid(process, &status, 0) == process);
    CHECK(finish(posted, id, &got, context) == -BMI_ECONNRESET);
    launch(&second, shm_url);
    /* Nobody is at the one address, and somebody at the other. */
    CHECK(ask(by_shm, 4, 4) == 0);
    CHECK(ask(by_tcp, 5, 5) == -BMI_EHOSTUNREACH);
    launch(&first, tcp_url);
    CHECK(ask(by_tcp, 6, 6) == 0 && ask(by_shm, 7, 7) == 0);
    CHECK(ask(by_tcp, 0, 8) == 0);
    end(&first, 0);
    CHECK(ask(by_shm, 8, 9) == 0 && ask(by_shm, 0, 10) == 0);
    CHECK(BMI_finalize() == 0);
    end(&second, 0);
}

/* ---- a server dies and comes back at the same place, many times ---- */

enum { DEATHS = 6 };

static void deaths(const char *medium)
{
    struct Server servers[DEATHS + 1];
    BMI_addr_t peer;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    char bytes[4];
    int life, posted;
    servers[0] = start(medium, echo);
    for (life = 1; life <= DEATHS; life++)
        servers[life] = prepare(medium, echo);
    begin();
    CHECK(LOOKUP(&peer, servers[0].url) == 0);
    for (life = 0; life < DEATHS; life++) {
        CHECK(ask(peer, 4, life) == 0);
        posted = BMI_post_recv(&id, peer, bytes, 4, &got, BMI_EXT_ALLOC, 5, NULL, context, NULL);
        CHECK(kill(servers[life].process, SIGKILL) == 0);
        end(&servers[life], SIGKILL);
        CHECK(finish(posted, id, &got, context) == -BMI_ECONNRESET);
        launch(&servers[life + 1], servers[0].url);
        if (life % 2 == 1) {
            close_socket(peer);
            CHECK(LOOKUP(&peer, servers[0].url) == 0);
        }
        CHECK(ask(peer, 5, 100 + life) == 0);
    }
    CHECK(ask(peer, 0, 1) == 0);
    CHECK(BMI_finalize() == 0);
    end(&servers[DEATHS], 0);
}

/* ---- clients die while a server answers them ---- */

static void client_deaths(const char *medium)
{
    struct Server server = start(medium, echo);
    int life, status;
    for (life = 0; life < 12; life++) {
        pid_t client = fork();
        CHECK(client >= 0);
        if (client == 0) {
            BMI_addr_t peer;
            begin();
            CHECK(LOOKUP(&peer, server.url) == 0);
            CHECK(ask(peer, 3, life) == 0);
            /* Dead with a question on its way. */
            if (life % 2 == 0)
                (void)send_unexpected_to(peer, &life, sizeof life, 4, context);
            raise(SIGKILL);
        }
        CHECK(waitpid(client, &status, 0) == client && WIFSIGNALED(status));
        CHECK(WTERMSIG(status) == SIGKILL);
    }
    {
        BMI_addr_t peer;
        begin();
        CHECK(LOOKUP(&peer, server.url) == 0);
        CHECK(ask(peer, 3, 77) == 0 && ask(peer, 0, 78) == 0);
        CHECK(BMI_finalize() == 0);
    }
    end(&server, 0);
}

/* ---- two servers that know each other: one dies ---- */

static int callers_url[2];

static void call_first(void)
{
    char url[512];
    BMI_addr_t caller;
    ssize_t length = read(callers_url[0], url, sizeof url - 1);
    CHECK(length > 0);
    url[length] = '\0';
    CHECK(LOOKUP(&caller, url) == 0);
    CHECK(ask(caller, 1, 41) == 0);
    echo();
}

static void both_listen(const char *medium)
{
    struct Server other, again;
    struct BMI_unexpected_info info;
    BMI_addr_t peer;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    struct BMI_unexpected_info none;
    char own[512], bytes[4];
    int posted, count = 0;
    CHECK(pipe(callers_url) == 0);
    other = prepare(medium, call_first);
    again = prepare(medium, echo);
    alarm(4 * HANG_SECONDS);
    serve(medium, own, sizeof own);
    CHECK(BMI_open_context(&context) == 0);
    launch(&other, "*");
    CHECK(write(callers_url[1], own, strlen(own)) > 0);
    /* It calls us, and then we look it up: one process with two addresses, of which one is learnt. */
    info = wait_unexpected();
    CHECK(send_to(info.addr, info.buffer, info.size, info.tag, context) == 0);
    CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
    CHECK(LOOKUP(&peer, other.url) == 0 && ask(peer, 2, 42) == 0);
    CHECK(BMI_set_info(info.addr, BMI_DEC_ADDR_REF, NULL) == 0);
    posted = BMI_post_recv(&id, peer, bytes, 4, &got, BMI_EXT_ALLOC, 5, NULL, context, NULL);
    CHECK(kill(other.process, SIGKILL) == 0);
    end(&other, SIGKILL);
    CHECK(finish(posted, id, &got, context) == -BMI_ECONNRESET);
    launch(&again, other.url);
    /* What was looked up stays; what was learnt has gone with its process. */
    CHECK(ask(peer, 3, 43) == 0);
    CHECK(BMI_testunexpected(1, &count, &none, 0) == 0);
    is_nobody(info.addr);
    CHECK(strcmp(BMI_addr_rev_lookup(peer), other.url) == 0);
    CHECK(ask(peer, 0, 44) == 0);
    CHECK(BMI_finalize() == 0);
    end(&again, 0);
}

/* ---- a server dies while its idle connection is closed ---- */

static int connections(void)
{
    int descriptor, count = 0;
    for (descriptor = 3; descriptor < 256; descriptor++) {
        struct sockaddr_storage there;
        socklen_t length = sizeof there;
        count += getpeername(descriptor, (struct sockaddr *)&there, &length) == 0;
    }
    return count;
}

static void rested(const char *medium)
{
    struct Server first = start(medium, echo), second = start(medium, echo);
    struct Server again = prepare(medium, echo);
    BMI_addr_t peer, other;
    struct BMI_unexpected_info info;
    char own[512];
    int count = 0, word = 0;
    double begun;
    alarm(4 * HANG_SECONDS);
    CHECK(setenv("ROPEWALK_BMI_SOCKETS", "1", 1) == 0);
    serve(medium, own, sizeof own);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(LOOKUP(&peer, first.url) == 0 && LOOKUP(&other, second.url) == 0);
    CHECK(ask(peer, 1, 1) == 0);
    /* While the second one is busy the first one's connection is closed. */
    begun = now();
    do {
        CHECK(ask(other, 2, word++) == 0);
        CHECK(BMI_testunexpected(1, &count, &info, 5) >= 0 && count == 0);
        CHECK(now() - begun < HANG_SECONDS);
    } while (connections() > 1);
    CHECK(kill(first.process, SIGKILL) == 0);
    end(&first, SIGKILL);
    launch(&again, first.url);
    CHECK(ask(peer, 3, 3) == 0);
    CHECK(ask(other, 0, 4) == 0 && ask(peer, 0, 5) == 0);
    CHECK(BMI_finalize() == 0);
    end(&second, 0);
    end(&again, 0);
}

/* ---- the library ends and begins again ---- */

static int descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* A port that is free now. */
static int free_port(void)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(descriptor, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(getsockname(descriptor, (struct sockaddr *)&address, &length) == 0);
    close(descriptor);
    return ntohs(address.sin_port);
}

static pthread_barrier_t step;

/* Uses the library, and remembers it for as long as it lives. */
static void *remember(void *rounds)
{
    int round;
    for (round = 0; round < *(int *)rounds; round++) {
        bmi_context_id own = -1;
        pthread_barrier_wait(&step);
        CHECK(BMI_open_context(&own) == 0);
        pthread_barrier_wait(&step);
        /* Here the library ends. */
        pthread_barrier_wait(&step);
        CHECK(BMI_open_context(&own) == -BMI_ENETDOWN);
        /* Only now may it begin again. */
        pthread_barrier_wait(&step);
    }
    return NULL;
}

/* Is in a call when the library ends. */
static void *wait_for_nothing(void *which)
{
    bmi_op_id_t id;
    bmi_error_code_t error;
    bmi_size_t size;
    struct BMI_unexpected_info info;
    int count = 1;
    double begun = now();
    if (which != NULL)
        CHECK(BMI_testcontext(1, &id, &count, &error, &size, NULL, HANG_SECONDS * 1000, context) <= 0);
    else
        CHECK(BMI_testunexpected(1, &count, &info, HANG_SECONDS * 1000) <= 0);
    CHECK(count == 0 && now() - begun < HANG_SECONDS / 4.0);
    return NULL;
}

static void lives(const char *medium)
{
    enum { ROUNDS = 4 };
    static int rounds = ROUNDS;
    char url[64], methods[16];
    pthread_t remembers, waits[2];
    int before, round, status;
    alarm(4 * HANG_SECONDS);
    snprintf(methods, sizeof methods, "bmi_%s", medium);
    if (strcmp(medium, "shm") != 0)
        snprintf(url, sizeof url, "%s://127.0.0.1:%d", medium, free_port());
    else
        snprintf(url, sizeof url, "%s://lives-%d", medium, (int)getpid());
    CHECK(pthread_barrier_init(&step, NULL, 2) == 0);
    CHECK(pthread_create(&remembers, NULL, remember, &rounds) == 0);
    before = descriptors();
    for (round = 0; round < ROUNDS; round++) {
        BMI_addr_t own;
        pid_t child;
        int flags = BMI_INIT_SERVER | (round % 2 == 0 ? BMI_TCP_BIND_SPECIFIC : 0), word = 5;
        CHECK(INITIALIZE(methods, url, flags) == 0);
        CHECK(INITIALIZE(NULL, NULL, 0) == 0);
        CHECK(BMI_open_context(&context) == 0);
        CHECK(LOOKUP(&own, url) == 0);
        CHECK(send_to(own, &word, sizeof word, 3, context) == 0);
        pthread_barrier_wait(&step);
        pthread_barrier_wait(&step);
        CHECK(pthread_create(&waits[0], NULL, wait_for_nothing, NULL) == 0);
        CHECK(pthread_create(&waits[1], NULL, wait_for_nothing, &word) == 0);
        usleep(10000);
        /* A child has the descriptors, too, and lives on. */
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            bmi_context_id none = -1;
            CHECK(BMI_open_context(&none) == -BMI_ENETDOWN);
            CHECK(BMI_finalize() == 0);
            pause();
        }
        CHECK(BMI_finalize() == 0);
        CHECK(descriptors() > before);
        CHECK(BMI_finalize() == 0);
        CHECK(descriptors() == before);
        CHECK(pthread_join(waits[0], NULL) == 0 && pthread_join(waits[1], NULL) == 0);
        pthread_barrier_wait(&step);
        pthread_barrier_wait(&step);
        if (strcmp(medium, "tcp") == 0) {
            /* At once, beside the child of the former life. */
            CHECK(INITIALIZE(methods, url, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC) == 0);
            CHECK(BMI_finalize() == 0);
        }
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        if (round + 1 == ROUNDS) {
            /* One that is forked without a library may have its own. */
            pid_t heir = fork();
            if (heir == 0) {
                CHECK(INITIALIZE(methods, url, BMI_INIT_SERVER) == 0);
                CHECK(BMI_finalize() == 0);
                exit(0);
            }
            CHECK(waitpid(heir, &status, 0) == heir && WIFEXITED(status));
            CHECK(WEXITSTATUS(status) == 0);
        }
    }
    CHECK(pthread_join(remembers, NULL) == 0);
}

/* ---- a size of 0 is the system's ---- */

enum { BUFFERS_BYTES = 4 << 20 };

static void system_sizes(void)
{
    int none = 0;
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, &none) == 0);
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_RECEIVE_SIZE, &none) == 0);
}

static void move_much(BMI_addr_t peer, int first)
{
    char *bytes = (char *)calloc(1, BUFFERS_BYTES);
    bmi_size_t got = 0;
    double begun = now();
    if (first)
        CHECK(send_to(peer, bytes, BUFFERS_BYTES, 2, context) == 0);
    CHECK(receive_from(peer, bytes, BUFFERS_BYTES, &got, 2, context) == 0 && got == BUFFERS_BYTES);
    if (!first)
        CHECK(send_to(peer, bytes, BUFFERS_BYTES, 2, context) == 0);
    CHECK(now() - begun < HANG_SECONDS / 10.0);
    free(bytes);
}

static void take_much(void)
{
    struct BMI_unexpected_info info;
    system_sizes();
    info = wait_unexpected();
    CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
    move_much(info.addr, 0);
    CHECK(BMI_finalize() == 0);
}

static void buffers(const char *medium)
{
    struct Server server = start(medium, take_much);
    BMI_addr_t peer;
    int some = 4096;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    /* Takes back what was said before. */
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_RECEIVE_SIZE, &some) == 0);
    system_sizes();
    CHECK(send_unexpected_to(peer, "go", 2, 1, context) == 0);
    move_much(peer, 1);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

/* ---- a host that is not bound to need not be there ---- */

static void unused_host(const char *medium)
{
    char listen[64], url[64];
    int port = free_port(), ends[2], status;
    BMI_addr_t peer;
    pid_t process;
    CHECK(strcmp(medium, "tcp") == 0);
    snprintf(listen, sizeof listen, "tcp://NULL:%d\n", port);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d\n", port);
    CHECK(pipe(ends) == 0);
    process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        alarm(4 * HANG_SECONDS);
        CHECK(INITIALIZE("bmi_tcp", listen, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC) ==
              -BMI_EHOSTNTFD);
        CHECK(INITIALIZE("bmi_tcp", listen, BMI_INIT_SERVER | BMI_AUTO_REF_COUNT) == 0);
        CHECK(BMI_open_context(&context) == 0);
        CHECK(write(ends[1], "r", 1) == 1);
        echo();
        exit(0);
    }
    CHECK(read(ends[0], &status, 1) == 1);
    begin();
    CHECK(LOOKUP(&peer, url) == 0);
    CHECK(strcmp(BMI_addr_rev_lookup(peer), url) == 0);
    CHECK(ask(peer, 1, 1) == 0 && ask(peer, 0, 2) == 0);
    CHECK(BMI_finalize() == 0);
    CHECK(waitpid(process, &status, 0) == process);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *);
    } cases[] = {
        {"nobody", nobody},
        {"reconnects", reconnects},
        {"late_answers", late_answers},
        {"several_names", several_names},
        {"names_part", names_part},
        {"deaths", deaths},
        {"client_deaths", client_deaths},
        {"both_listen", both_listen},
        {"rested", rested},
        {"lives", lives},
        {"buffers", buffers},
        {"unused_host", unused_host},
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
