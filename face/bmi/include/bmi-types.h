/* Types and constants of the BMI interface.
 *
 * Written for Ropewalk; the names, numbers and layouts are those that programs for standalone BMI and
 * for OrangeFS's BMI were compiled with. Compile with -DBMI_API_ORANGEFS for the latter.
 */
#ifndef ROPEWALK_BMI_TYPES_H
#define ROPEWALK_BMI_TYPES_H

#include <stdint.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An address; 0 is none. */
#ifdef __PVFS2_TYPES_H
typedef PVFS_BMI_addr_t BMI_addr_t;
#else
typedef int64_t BMI_addr_t;
#endif

typedef int64_t bmi_size_t;     /* bytes */
typedef int32_t bmi_msg_tag_t;  /* by which a receive selects messages */
typedef int64_t bmi_context_id; /* a queue of completions */
typedef int64_t bmi_op_id_t;    /* an operation under way; 0: none */
typedef int32_t bmi_error_code_t;

struct PVFS_hint_s;
typedef struct PVFS_hint_s *bmi_hint; /* not read; may be NULL */

/* Longest URL, with its end. */
#ifdef BMI_API_ORANGEFS
#define BMI_MAX_ADDR_LEN 2048
#else
#define BMI_MAX_ADDR_LEN 256
#endif

/* Contexts that may be open at a time. */
#define BMI_MAX_CONTEXTS 1024

/* What memory of BMI_memalloc is for. */
enum bmi_op_type {
    BMI_SEND = 1,
    BMI_RECV = 2
};

/* Where a buffer comes from: a hint. */
enum bmi_buffer_type {
    BMI_PRE_ALLOC = 1, /* BMI_memalloc */
    BMI_EXT_ALLOC = 2  /* anything else */
};

enum BMI_io_type {
    BMI_IO_READ = 1,
    BMI_IO_WRITE = 2
};

/* Flags of BMI_initialize. */
#define BMI_INIT_SERVER 1       /* listens */
#define BMI_TCP_BIND_SPECIFIC 2 /* at the given address alone, not at all of this host */
#define BMI_AUTO_REF_COUNT 4    /* each unexpected message counts a reference to its address */

/* Options of BMI_set_info and BMI_get_info: what the parameter points to. */
enum BMI_options {
    BMI_DROP_ADDR = 1,            /* set: forgets the address */
    BMI_CHECK_INIT = 2,           /* get: 0 where a module is active */
    BMI_CHECK_MAXSIZE = 3,        /* get, int: the longest message */
    BMI_GET_METH_ADDR = 4,        /* get, void *: opaque */
    BMI_INC_ADDR_REF = 5,         /* set */
    BMI_DEC_ADDR_REF = 6,         /* set */
    BMI_DROP_ADDR_QUERY = 7,      /* get, int: whether the address may be forgotten */
    BMI_FORCEFUL_CANCEL_MODE = 8, /* set: accepted; cancelling never hurts other operations here */
    BMI_TRUSTED_CONNECTION = 9,   /* not supported: BMI_ENOSYS */
    BMI_GET_UNEXP_SIZE = 10,      /* get, int: the longest unexpected message */
    BMI_TCP_BUFFER_SEND_SIZE = 11,    /* set, int: SO_SNDBUF of later connections */
    BMI_TCP_BUFFER_RECEIVE_SIZE = 12, /* set, int: SO_RCVBUF of later connections */
    BMI_TCP_CLOSE_SOCKET = 13,        /* set: forgets the address and closes its connection */
    BMI_OPTIMISTIC_BUFFER_REG = 14,   /* set: a hint, accepted */
    BMI_TCP_CHECK_UNEXPECTED = 15,    /* set, int: 0 lets BMI_testcontext wait beside unexpected messages */
#ifdef BMI_API_ORANGEFS
    BMI_TRANSPORT_METHODS_STRING = 16 /* get, char **: names of all modules, to be freed; returns their count */
#else
    BMI_ZOID_POST_TIMEOUT = 16,        /* set: accepted */
    BMI_TRANSPORT_METHODS_STRING = 17, /* get, char **: names of all modules, to be freed; returns their count */
    BMI_TCP_GET_PORT = 18              /* get, int: the port that the tcp module listens at */
#endif
};

/* An option of this library alone. get, char **: why messages to an address fail, with each path and its cause, to be freed; returns 1,
 * or 0 and a null pointer where nothing is known against any path. */
#define BMI_WHY_UNREACHABLE 0x5257

/* What BMI_OPTIMISTIC_BUFFER_REG is about: memory that messages will come from, or go to. */
struct bmi_optimistic_buffer_info {
    const void *buffer;
    bmi_size_t len;
    enum BMI_io_type rw;
};

/* Error codes: returned negated. */
#define BMI_ERROR_BIT (1 << 30)           /* an error of the interface's own numbering */
#define BMI_NON_ERRNO_ERROR_BIT (1 << 29) /* beside it: no system has this error */
#define BMI_NON_ERROR_BIT (BMI_NON_ERRNO_ERROR_BIT | BMI_ERROR_BIT)
#ifndef BMI_ERROR
#define BMI_ERROR (1 << 7) /* it comes from BMI */
#endif
#define BMIE(number) ((number) | BMI_ERROR_BIT)
#define BMI_E(number) (BMIE(number) | BMI_ERROR)
#define BMI_N(number) ((number) | (BMI_NON_ERROR_BIT | BMI_ERROR))

#define BMI_EPERM BMI_E(1)
#define BMI_ENOENT BMI_E(2)
#define BMI_EINTR BMI_E(3)
#define BMI_EIO BMI_E(4)
#define BMI_ENXIO BMI_E(5)
#define BMI_EBADF BMI_E(6)
#define BMI_EAGAIN BMI_E(7)
#define BMI_ENOMEM BMI_E(8)
#define BMI_EFAULT BMI_E(9)
#define BMI_EBUSY BMI_E(10)
#define BMI_EEXIST BMI_E(11)
#define BMI_ENODEV BMI_E(12)
#define BMI_ENOTDIR BMI_E(13)
#define BMI_EISDIR BMI_E(14)
#define BMI_EINVAL BMI_E(15)
#define BMI_EMFILE BMI_E(16)
#define BMI_EFBIG BMI_E(17)
#define BMI_ENOSPC BMI_E(18)
#define BMI_EROFS BMI_E(19)
#define BMI_EMLINK BMI_E(20)
#define BMI_EPIPE BMI_E(21)
#define BMI_EDEADLK BMI_E(22)
#define BMI_ENAMETOOLONG BMI_E(23)
#define BMI_ENOLCK BMI_E(24)
#define BMI_ENOSYS BMI_E(25)
#define BMI_ENOTEMPTY BMI_E(26)
#define BMI_ELOOP BMI_E(27)
#define BMI_EWOULDBLOCK BMI_E(28)
#define BMI_ENOMSG BMI_E(29)
#define BMI_EUNATCH BMI_E(30)
#define BMI_EBADR BMI_E(31)
#define BMI_EDEADLOCK BMI_E(32)
#define BMI_ENODATA BMI_E(33)
#define BMI_ETIME BMI_E(34)
#define BMI_ENONET BMI_E(35)
#define BMI_EREMOTE BMI_E(36)
#define BMI_ECOMM BMI_E(37)
#define BMI_EPROTO BMI_E(38)
#define BMI_EBADMSG BMI_E(39)
#define BMI_EOVERFLOW BMI_E(40)
#define BMI_ERESTART BMI_E(41)
#define BMI_EMSGSIZE BMI_E(42)
#define BMI_EPROTOTYPE BMI_E(43)
#define BMI_ENOPROTOOPT BMI_E(44)
#define BMI_EPROTONOSUPPORT BMI_E(45)
#define BMI_EOPNOTSUPP BMI_E(46)
#define BMI_EADDRINUSE BMI_E(47)
#define BMI_EADDRNOTAVAIL BMI_E(48)
#define BMI_ENETDOWN BMI_E(49)
#define BMI_ENETUNREACH BMI_E(50)
#define BMI_ENETRESET BMI_E(51)
#define BMI_ENOBUFS BMI_E(52)
#define BMI_ETIMEDOUT BMI_E(53)
#define BMI_ECONNREFUSED BMI_E(54)
#define BMI_EHOSTDOWN BMI_E(55)
#define BMI_EHOSTUNREACH BMI_E(56)
#define BMI_EALREADY BMI_E(57)
#define BMI_EACCES BMI_E(58)
#define BMI_ECONNRESET BMI_E(59)

#define BMI_ECANCEL BMI_N(1)
#define BMI_EDEVINIT BMI_N(2)
#define BMI_EDETAIL BMI_N(3)
#define BMI_EHOSTNTFD BMI_N(4)
#define BMI_EADDRNTFD BMI_N(5)
#define BMI_ENORECVR BMI_N(6)
#define BMI_ETRYAGAIN BMI_N(7)

/* The interface's code of an error of this system, of the same sign; others unchanged. */
int bmi_errno_to_pvfs(int error);

/* What an error code is called. */
const char *bmi_status_string(int error);

#ifdef __cplusplus
}
#endif

#endif
