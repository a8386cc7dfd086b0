/* Ends the process into which it is loaded at a chosen system call: for tests of recovery.
 *
 * LD_PRELOAD loads it before the program begins. ROPEWALK_KILL_AT=KIND:NUMBER:HOW says when:
 *   KIND    sync   fsync, fdatasync
 *           write  writes to regular files, changes of their size, room and names
 *           send   messages to sockets, bells of shared memory (eventfd), answers to the kernel (/dev/fuse)
 *           none   never
 *   NUMBER  the first call is 1
 *   HOW     before, after, or torn: the first half of the bytes of a write or message goes out
 * ROPEWALK_KILL_ARMED: calls count from the signal USR2 on, not from the beginning.
 * ROPEWALK_KILL_GROUP: the whole process group ends, not this process alone.
 * ROPEWALK_NO_ATTACH: no other process's memory can be reached, so messages go through sockets.
 *
 * A seccomp filter turns these calls into a signal, wherever they come from: also programs that call the
 * kernel without the C library are caught. The handler makes the call itself, from the one place that the
 * filter lets through. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum kind { NONE, SYNC, WRITE, SEND };
enum how { BEFORE, TORN, AFTER };

static enum kind wanted;
static enum how how;
static long left;
static int group, no_attach, counts;

/* The one place whose calls the filter lets through: the address after the instruction. */
extern char let_through[];
long direct(long number, long a, long b, long c, long d, long e, long f);
__asm__(".text\n.globl direct\n.type direct,@function\ndirect:\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\nmov %rdx,%rsi\nmov %rcx,%rdx\nmov %r8,%r10\nmov %r9,%r8\n"
        "mov 8(%rsp),%r9\nsyscall\n.globl let_through\nlet_through:\nret\n");

static enum kind kind_of_descriptor(int descriptor) {
    struct stat found;
    if (direct(SYS_fstat, descriptor, (long)&found, 0, 0, 0, 0) != 0) return NONE;
    mode_t type = found.st_mode & S_IFMT;
    if (type == S_IFREG) return WRITE;
    /* An eventfd has no type; /dev/fuse is device 10:229. */
    if (type == S_IFSOCK || type == 0) return SEND;
    return type == S_IFCHR && found.st_rdev == makedev(10, 229) ? SEND : NONE;
}

static enum kind kind_of(long number, long first) {
    switch (number) {
    case SYS_fsync: case SYS_fdatasync: return SYNC;
    case SYS_pwrite64: case SYS_pwritev: case SYS_ftruncate: case SYS_fallocate: case SYS_rename:
    case SYS_renameat: case SYS_renameat2: case SYS_unlink: case SYS_unlinkat: return WRITE;
    case SYS_sendmsg: case SYS_sendto: return SEND;
    default: return kind_of_descriptor((int)first);
    }
}

static void die(void) {
    long self = direct(SYS_getpid, 0, 0, 0, 0, 0, 0);
    direct(SYS_kill, group ? 0 : self, SIGKILL, 0, 0, 0, 0);
    for (;;) direct(SYS_pause, 0, 0, 0, 0, 0, 0);
}

/* The first half of what the call would bring out. */
static void tear(long number, const long *a) {
    if (number == SYS_pwrite64) direct(number, a[0], a[1], a[2] / 2, a[3], 0, 0);
    else if (number == SYS_sendmsg) {
        const struct msghdr *message = (const struct msghdr *)a[1];
        /* Descriptors travel with the first byte or not at all. */
        if (message->msg_controllen == 0 && message->msg_iovlen > 0)
            direct(SYS_sendto, a[0], (long)message->msg_iov[0].iov_base,
                   (long)(message->msg_iov[0].iov_len + 1) / 2, MSG_NOSIGNAL, 0, 0);
    }
}

static void caught(int signal, siginfo_t *info, void *context) {
    (void)signal;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    long number = info->si_syscall;
    const long a[6] = {registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                       registers[REG_R10], registers[REG_R8],  registers[REG_R9]};
    int saved = errno;
    if (number == SYS_process_vm_readv && no_attach) {
        registers[REG_RAX] = -EPERM;
        return;
    }
    int last = counts && wanted != NONE && kind_of(number, a[0]) == wanted &&
               __atomic_sub_fetch(&left, 1, __ATOMIC_SEQ_CST) == 0;
    if (last && how != AFTER) {
        if (how == TORN) tear(number, a);
        die();
    }
    registers[REG_RAX] = direct(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (last) die();
    errno = saved;
}

static void arm(int signal) {
    (void)signal;
    counts = 1;
}

static void choose(const char *text) {
    const char *colon = strchr(text, ':');
    if (strncmp(text, "sync", 4) == 0) wanted = SYNC;
    else if (strncmp(text, "write", 5) == 0) wanted = WRITE;
    else if (strncmp(text, "send", 4) == 0) wanted = SEND;
    if (colon == NULL) return;
    left = strtol(colon + 1, NULL, 10);
    colon = strchr(colon + 1, ':');
    if (colon != NULL) how = strcmp(colon + 1, "torn") == 0 ? TORN : strcmp(colon + 1, "after") == 0 ? AFTER : BEFORE;
}

__attribute__((constructor)) static void begin(void) {
    static const int numbers[] = {SYS_fsync, SYS_fdatasync, SYS_pwrite64, SYS_pwritev, SYS_write, SYS_writev,
        SYS_ftruncate, SYS_fallocate, SYS_rename, SYS_renameat, SYS_renameat2, SYS_unlink, SYS_unlinkat,
        SYS_sendmsg, SYS_sendto, SYS_process_vm_readv};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    const char *text = getenv("ROPEWALK_KILL_AT");
    if (text == NULL) return;
    choose(text);
    counts = getenv("ROPEWALK_KILL_ARMED") == NULL;
    group = getenv("ROPEWALK_KILL_GROUP") != NULL;
    no_attach = getenv("ROPEWALK_NO_ATTACH") != NULL;
    uint64_t place = (uint64_t)(uintptr_t)let_through;
    struct sock_filter filter[COUNT + 12];
    int at = 0;
#define PUT(code, value, yes, no) filter[at++] = (struct sock_filter){(code), (yes), (no), (value)}
#define LOAD(field) PUT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field), 0, 0)
    LOAD(arch);
    PUT(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    PUT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    LOAD(nr);
    for (int i = 0; i < COUNT; i++) PUT(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)numbers[i], (uint8_t)(COUNT - i), 0);
    PUT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    LOAD(instruction_pointer);
    PUT(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)place, 0, 3);
    PUT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4, 0, 0);
    PUT(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(place >> 32), 0, 1);
    PUT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    PUT(BPF_RET | BPF_K, SECCOMP_RET_TRAP, 0, 0);
    struct sock_fprog program = {(unsigned short)at, filter};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = caught;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART | SA_ONSTACK;
    struct sigaction armed;
    memset(&armed, 0, sizeof armed);
    armed.sa_handler = arm;
    armed.sa_flags = SA_RESTART | SA_ONSTACK;
    if (sigaction(SIGUSR2, &armed, NULL) != 0 || sigaction(SIGSYS, &action, NULL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(97);
}
