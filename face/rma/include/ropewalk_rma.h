/* One-sided windows: memory of each rank of a job that all ranks put to, get from and accumulate in.
 *
 * A function has the name and the meaning of its MPI counterpart (MPI-4.1, chapter 12), with rw_ in place of MPI_, but for this:
 *   - all ranks of the job are the team: no call takes a communicator, and a group is a list of ranks;
 *   - an info is a text, "no_locks=true;name=halo", or NULL;
 *   - counts, displacements and sizes of data have 64 bits, in lists and behind pointers, too: give rw_count lengths[n] and the
 *     address of an rw_count size. An int there would be read or overwritten beyond its end. Ranks, numbers of ranks and of
 *     requests, and units are ints, as the declarations say;
 *   - datatypes need no commit;
 *   - each call returns RW_SUCCESS or the code of an error, and other calls may follow one that failed.
 *     rw_last_error has words for it, with the window, the rank and the rule or range where these are known.
 *
 * Programs are started by 'ropewalk run -n 4 -- ./program'; one that is started otherwise is alone.
 * Threads may call at the same time, as far as MPI's rules of epochs allow it. The manual page is ropewalk-rma(7).
 */
#ifndef ROPEWALK_RMA_H
#define ROPEWALK_RMA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles: numbers, which are never read through. One of an object that is gone is an error, not a crash. */
typedef struct rw_win_handle *rw_win;
typedef struct rw_type_handle *rw_type;
typedef struct rw_request_handle *rw_request;
typedef int rw_op;
typedef int64_t rw_aint;
typedef int64_t rw_count;

#define RW_WIN_NULL ((rw_win)0)
#define RW_TYPE_NULL ((rw_type)0)
#define RW_REQUEST_NULL ((rw_request)0)
#define RW_INFO_NULL ((const char *)0)

/* Data of the origin whose datatype has addresses for displacements, as rw_get_address gives them. */
#define RW_BOTTOM ((void *)1)

/* The target that is nobody: operations on it do nothing. */
#define RW_PROC_NULL (-1)

/* Codes. */
#define RW_SUCCESS 0
#define RW_ERR_ARG 1
#define RW_ERR_WIN 2
#define RW_ERR_TYPE 3
#define RW_ERR_REQUEST 4
#define RW_ERR_RANK 5
#define RW_ERR_DISP 6
#define RW_ERR_COUNT 7
#define RW_ERR_OP 8
#define RW_ERR_SIZE 9
#define RW_ERR_INFO 10
#define RW_ERR_ASSERT 11
#define RW_ERR_LOCKTYPE 12
/* The call is not legal in this epoch. */
#define RW_ERR_RMA_SYNC 13
/* A target refused an operation that lies outside of its window, or whose memory is gone. The synchronisation behind it tells so. */
#define RW_ERR_RMA_RANGE 14
#define RW_ERR_NO_MEM 15
/* A rank is lost. */
#define RW_ERR_PEER 16
/* The last holder of a lock died with it: what it wrote may be half done. The lock is granted all the same. */
#define RW_ERR_OWNER_DIED 17
/* Ranks gave different arguments to a collective call, or one gave wrong ones. */
#define RW_ERR_DISAGREE 18
#define RW_ERR_INIT 19
#define RW_ERR_OTHER 20
/* Ranks do not share the memory of a window. */
#define RW_ERR_RMA_SHARED 21
/* Memory cannot be attached: some of it is already, or too much else is. Or nothing is attached there. */
#define RW_ERR_RMA_ATTACH 22
/* The call is for windows of another kind. */
#define RW_ERR_RMA_FLAVOR 23
/* Operations of one epoch get into each other's way. Only windows with the info check=true tell so. */
#define RW_ERR_RMA_CONFLICT 24

/* Predefined types. */
#define RW_PREDEFINED(number) ((rw_type)(uintptr_t)(number))
#define RW_INT8 RW_PREDEFINED(1)
#define RW_UINT8 RW_PREDEFINED(2)
#define RW_INT16 RW_PREDEFINED(3)
#define RW_UINT16 RW_PREDEFINED(4)
#define RW_INT32 RW_PREDEFINED(5)
#define RW_UINT32 RW_PREDEFINED(6)
#define RW_INT64 RW_PREDEFINED(7)
#define RW_UINT64 RW_PREDEFINED(8)
#define RW_FLOAT RW_PREDEFINED(9)
#define RW_DOUBLE RW_PREDEFINED(10)
#define RW_FLOAT_COMPLEX RW_PREDEFINED(11)
#define RW_DOUBLE_COMPLEX RW_PREDEFINED(12)
#define RW_BOOL RW_PREDEFINED(13)
#define RW_BYTE RW_PREDEFINED(14)
/* Pairs of a value and an int, as C lays them out, for RW_MINLOC and RW_MAXLOC. */
#define RW_FLOAT_INT RW_PREDEFINED(15)
#define RW_DOUBLE_INT RW_PREDEFINED(16)
#define RW_LONG_INT RW_PREDEFINED(17)
#define RW_2INT RW_PREDEFINED(18)
#define RW_SHORT_INT RW_PREDEFINED(19)
/* long double, and its pair. On processors other than x86-64 they take RW_REPLACE and RW_NO_OP only. */
#define RW_LONG_DOUBLE RW_PREDEFINED(20)
#define RW_LONG_DOUBLE_INT RW_PREDEFINED(21)
/* By C's names, where int has 32 bits and long 64. */
#define RW_SIGNED_CHAR RW_INT8
#define RW_UNSIGNED_CHAR RW_UINT8
#define RW_CHAR RW_INT8
#define RW_SHORT RW_INT16
#define RW_UNSIGNED_SHORT RW_UINT16
#define RW_INT RW_INT32
#define RW_UNSIGNED RW_UINT32
#define RW_LONG RW_INT64
#define RW_UNSIGNED_LONG RW_UINT64
#define RW_LONG_LONG RW_INT64
#define RW_UNSIGNED_LONG_LONG RW_UINT64
#define RW_AINT RW_INT64
#define RW_COUNT RW_INT64

/* Operators. */
#define RW_SUM 1
#define RW_PROD 2
#define RW_MIN 3
#define RW_MAX 4
#define RW_LAND 5
#define RW_LOR 6
#define RW_LXOR 7
#define RW_BAND 8
#define RW_BOR 9
#define RW_BXOR 10
#define RW_MINLOC 11
#define RW_MAXLOC 12
#define RW_REPLACE 13
#define RW_NO_OP 14

/* Assertions; several with | between them. */
#define RW_MODE_NOCHECK 1
#define RW_MODE_NOSTORE 2
#define RW_MODE_NOPUT 4
#define RW_MODE_NOPRECEDE 8
#define RW_MODE_NOSUCCEED 16

#define RW_LOCK_EXCLUSIVE 1
#define RW_LOCK_SHARED 2

#define RW_ORDER_C 0
#define RW_ORDER_FORTRAN 1

/* Attributes of a window (rw_win_get_attr): its memory, an rw_aint, and ints. */
#define RW_WIN_BASE 1
#define RW_WIN_SIZE 2
#define RW_WIN_DISP_UNIT 3
#define RW_WIN_CREATE_FLAVOR 4
#define RW_WIN_MODEL 5

/* Values of RW_WIN_CREATE_FLAVOR. */
#define RW_WIN_FLAVOR_CREATE 1
#define RW_WIN_FLAVOR_ALLOCATE 2
#define RW_WIN_FLAVOR_DYNAMIC 3
#define RW_WIN_FLAVOR_SHARED 4

/* Values of RW_WIN_MODEL: every window is unified. */
#define RW_WIN_SEPARATE 1
#define RW_WIN_UNIFIED 2

/* Bytes of a window's name, its zero included, at most. */
#define RW_MAX_OBJECT_NAME 128

/* Bytes of one rank in rw_allgather, at most. */
#define RW_ALLGATHER_MAX 32768

/* The job. A process is a rank once: from rw_init to rw_finalize, which all ranks call. */
int rw_init(void);
int rw_finalize(void);
/* Ends the whole job with a status and a text. It does not return; before rw_init it ends this process alone. */
int rw_abort(int status, const char *why);
int rw_rank(int *rank);
int rw_size(int *size);
int rw_barrier(void);
int rw_allgather(const void *own, rw_count bytes, void *all);

/* The words for a code, and what this thread's last call that failed said. */
const char *rw_error_string(int code);
const char *rw_last_error(void);

/* Windows. `base` is the address of a pointer, but for rw_win_create, rw_win_attach and rw_win_detach: these take the memory's. */
int rw_win_allocate(rw_aint bytes, int disp_unit, const char *info, void *base, rw_win *win);
int rw_win_allocate_shared(rw_aint bytes, int disp_unit, const char *info, void *base, rw_win *win);
int rw_win_create(void *base, rw_aint bytes, int disp_unit, const char *info, rw_win *win);
/* A window without memory, and memory of this rank for it. Displacements are addresses at the target. */
int rw_win_create_dynamic(const char *info, rw_win *win);
int rw_win_attach(rw_win win, void *base, rw_aint bytes);
int rw_win_detach(rw_win win, const void *base);
int rw_get_address(const void *location, rw_aint *address);
int rw_win_free(rw_win *win);
int rw_win_get_base(rw_win win, void *base);
int rw_win_get_size(rw_win win, int rank, rw_aint *bytes, int *disp_unit);
int rw_win_shared_query(rw_win win, int rank, rw_aint *bytes, int *disp_unit, void *base);
int rw_win_get_attr(rw_win win, int attribute, void *value, int *flag);
/* All ranks, as rw_win_start and rw_win_post take them: at most `count` are written, `size` gets how many there are. */
int rw_win_get_group(rw_win win, int count, int *ranks, int *size);
int rw_win_set_name(rw_win win, const char *name);
/* `name` has room for RW_MAX_OBJECT_NAME bytes. */
int rw_win_get_name(rw_win win, char *name, int *length);
/* Changes what may change (see the manual page); the rest stays as it is. */
int rw_win_set_info(rw_win win, const char *info);
int rw_win_get_info(rw_win win, char *info, rw_count bytes, rw_count *needed);

/* Operations. The memory of the origin is the library's until the operation is complete there. */
int rw_put(const void *origin, rw_count origin_count, rw_type origin_type, int target, rw_aint disp,
           rw_count target_count, rw_type target_type, rw_win win);
int rw_get(void *origin, rw_count origin_count, rw_type origin_type, int target, rw_aint disp,
           rw_count target_count, rw_type target_type, rw_win win);
int rw_accumulate(const void *origin, rw_count origin_count, rw_type origin_type, int target, rw_aint disp,
                  rw_count target_count, rw_type target_type, rw_op op, rw_win win);
int rw_get_accumulate(const void *origin, rw_count origin_count, rw_type origin_type, void *result,
                      rw_count result_count, rw_type result_type, int target, rw_aint disp,
                      rw_count target_count, rw_type target_type, rw_op op, rw_win win);
int rw_fetch_and_op(const void *origin, void *result, rw_type type, int target, rw_aint disp, rw_op op,
                    rw_win win);
int rw_compare_and_swap(const void *origin, const void *compare, void *result, rw_type type, int target,
                        rw_aint disp, rw_win win);

/* A put that tells the target of itself: after it, and after all that was issued to that rank before, a counter there grows
 * by 1 (info "counters"). */
int rw_put_notify(const void *origin, rw_count origin_count, rw_type origin_type, int target, rw_aint disp,
                  rw_count target_count, rw_type target_type, int counter, rw_win win);
int rw_win_notices(rw_win win, int counter, rw_count *notices);
int rw_win_wait_notices(rw_win win, int counter, rw_count least);

/* Operations with a request, in epochs of locks. */
int rw_rput(const void *origin, rw_count origin_count, rw_type origin_type, int target, rw_aint disp,
            rw_count target_count, rw_type target_type, rw_win win, rw_request *request);
int rw_rget(void *origin, rw_count origin_count, rw_type origin_type, int target, rw_aint disp,
            rw_count target_count, rw_type target_type, rw_win win, rw_request *request);
int rw_raccumulate(const void *origin, rw_count origin_count, rw_type origin_type, int target, rw_aint disp,
                   rw_count target_count, rw_type target_type, rw_op op, rw_win win, rw_request *request);
int rw_rget_accumulate(const void *origin, rw_count origin_count, rw_type origin_type, void *result,
                       rw_count result_count, rw_type result_type, int target, rw_aint disp,
                       rw_count target_count, rw_type target_type, rw_op op, rw_win win,
                       rw_request *request);

/* Requests: the operation is complete at the origin. RW_REQUEST_NULL is complete. There are no statuses. rw_testall sets requests
 * that are over to RW_REQUEST_NULL also where others are not, other than MPI's. */
int rw_wait(rw_request *request);
int rw_test(rw_request *request, int *flag);
int rw_waitall(int count, rw_request *requests);
int rw_testall(int count, rw_request *requests, int *flag);

/* Synchronisation. */
int rw_win_fence(int assertions, rw_win win);
int rw_win_start(int count, const int *ranks, int assertions, rw_win win);
int rw_win_complete(rw_win win);
int rw_win_post(int count, const int *ranks, int assertions, rw_win win);
int rw_win_wait(rw_win win);
int rw_win_test(rw_win win, int *flag);
int rw_win_lock(int kind, int target, int assertions, rw_win win);
int rw_win_unlock(int target, rw_win win);
int rw_win_lock_all(int assertions, rw_win win);
int rw_win_unlock_all(rw_win win);
int rw_win_flush(int target, rw_win win);
int rw_win_flush_all(rw_win win);
int rw_win_flush_local(int target, rw_win win);
int rw_win_flush_local_all(rw_win win);
int rw_win_sync(rw_win win);

/* Datatypes. Of displacements, those of hvector, hindexed, hindexed_block and create_struct are in bytes. */
int rw_type_contiguous(rw_count count, rw_type old, rw_type *made);
int rw_type_vector(rw_count count, rw_count length, rw_aint stride, rw_type old, rw_type *made);
int rw_type_hvector(rw_count count, rw_count length, rw_aint stride, rw_type old, rw_type *made);
int rw_type_indexed(rw_count count, const rw_count *lengths, const rw_aint *disps, rw_type old,
                    rw_type *made);
int rw_type_hindexed(rw_count count, const rw_count *lengths, const rw_aint *disps, rw_type old,
                     rw_type *made);
int rw_type_indexed_block(rw_count count, rw_count length, const rw_aint *disps, rw_type old,
                          rw_type *made);
int rw_type_hindexed_block(rw_count count, rw_count length, const rw_aint *disps, rw_type old,
                           rw_type *made);
int rw_type_create_struct(rw_count count, const rw_count *lengths, const rw_aint *disps,
                          const rw_type *types, rw_type *made);
int rw_type_create_subarray(int dimensions, const rw_count *sizes, const rw_count *parts,
                            const rw_count *starts, int order, rw_type old, rw_type *made);
int rw_type_create_resized(rw_type old, rw_aint lower, rw_aint extent, rw_type *made);
int rw_type_dup(rw_type old, rw_type *made);
int rw_type_free(rw_type *type);
int rw_type_size(rw_type type, rw_count *size);
int rw_type_get_extent(rw_type type, rw_aint *lower, rw_aint *extent);
int rw_type_get_true_extent(rw_type type, rw_aint *lower, rw_aint *extent);

/* MPI's other names for some of these. */
#define RW_DATATYPE_NULL RW_TYPE_NULL
#define RW_INT8_T RW_INT8
#define RW_UINT8_T RW_UINT8
#define RW_INT16_T RW_INT16
#define RW_UINT16_T RW_UINT16
#define RW_INT32_T RW_INT32
#define RW_UINT32_T RW_UINT32
#define RW_INT64_T RW_INT64
#define RW_UINT64_T RW_UINT64
#define RW_LONG_LONG_INT RW_LONG_LONG
#define RW_C_BOOL RW_BOOL
#define RW_C_FLOAT_COMPLEX RW_FLOAT_COMPLEX
#define RW_C_DOUBLE_COMPLEX RW_DOUBLE_COMPLEX
#define rw_type_create_hvector rw_type_hvector
#define rw_type_create_hindexed rw_type_hindexed
#define rw_type_create_indexed_block rw_type_indexed_block
#define rw_type_create_hindexed_block rw_type_hindexed_block

#ifdef __cplusplus
}
#endif

#endif
