/* BMI, the Buffered Message Interface, over Ropewalk's message layer.
 *
 * Two flavours of this interface are in use. Without further ado this file declares the one of
 * standalone BMI; with -DBMI_API_ORANGEFS the one of OrangeFS. One library serves both, also in one process.
 *
 * Posts return 1 where the operation is complete (its id is 0 and no test reports it), 0 where it was
 * started, and a negative error code where it was not. Buffers, and lists of them, belong to the
 * operation until it has ended. bmi(7) and BMI_post_send(3) say more.
 */
#ifndef ROPEWALK_BMI_H
#define ROPEWALK_BMI_H

#include "bmi-types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A message that nobody posted for; its buffer is given back by BMI_unexpected_free. */
struct BMI_unexpected_info {
    bmi_error_code_t error_code;
    BMI_addr_t addr;
    void *buffer;
    bmi_size_t size;
    bmi_msg_tag_t tag;
};

/* Start and end. */
#ifdef BMI_API_ORANGEFS
int BMI_initialize(const char *method_list, const char *listen_addr, int flags, char *options);
#else
int BMI_initialize(const char *method_list, const char *listen_addr, int flags);
#endif
int BMI_finalize(void);

/* Contexts. */
int BMI_open_context(bmi_context_id *context_id);
void BMI_close_context(bmi_context_id context_id);

/* Messages. */
int BMI_post_send(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                  enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                  bmi_context_id context_id, bmi_hint hints);
int BMI_post_recv(bmi_op_id_t *id, BMI_addr_t src, void *buffer, bmi_size_t expected_size,
                  bmi_size_t *actual_size, enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag,
                  void *user_ptr, bmi_context_id context_id, bmi_hint hints);
int BMI_post_send_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count, bmi_size_t total_size,
                       enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                       bmi_context_id context_id, bmi_hint hints);
int BMI_post_recv_list(bmi_op_id_t *id, BMI_addr_t src, void *const *buffer_list,
                       const bmi_size_t *size_list, int list_count, bmi_size_t total_expected_size,
                       bmi_size_t *total_actual_size, enum bmi_buffer_type buffer_type,
                       bmi_msg_tag_t tag, void *user_ptr, bmi_context_id context_id,
                       bmi_hint hints);

/* Unexpected messages. */
#ifdef BMI_API_ORANGEFS
int BMI_post_sendunexpected(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer, bmi_size_t size,
                            enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag, void *user_ptr,
                            bmi_context_id context_id, bmi_hint hints);
int BMI_post_sendunexpected_list(bmi_op_id_t *id, BMI_addr_t dest, const void *const *buffer_list,
                                 const bmi_size_t *size_list, int list_count,
                                 bmi_size_t total_size, enum bmi_buffer_type buffer_type,
                                 bmi_msg_tag_t tag, void *user_ptr, bmi_context_id context_id,
                                 bmi_hint hints);
int BMI_testunexpected(int incount, int *outcount, struct BMI_unexpected_info *info_array,
                       int max_idle_time_ms);
#else
int BMI_post_sendunexpected_class(bmi_op_id_t *id, BMI_addr_t dest, const void *buffer,
                                  bmi_size_t size, enum bmi_buffer_type buffer_type,
                                  bmi_msg_tag_t tag, uint8_t msg_class, void *user_ptr,
                                  bmi_context_id context_id, bmi_hint hints);
int BMI_post_sendunexpected_list_class(bmi_op_id_t *id, BMI_addr_t dest,
                                       const void *const *buffer_list, const bmi_size_t *size_list,
                                       int list_count, bmi_size_t total_size,
                                       enum bmi_buffer_type buffer_type, bmi_msg_tag_t tag,
                                       uint8_t msg_class, void *user_ptr,
                                       bmi_context_id context_id, bmi_hint hints);
int BMI_testunexpected_class(int incount, int *outcount, struct BMI_unexpected_info *info_array,
                             uint8_t msg_class, int max_idle_time_ms);
#define BMI_post_sendunexpected(id, dest, buffer, size, type, tag, user_ptr, context, hints) \
    BMI_post_sendunexpected_class(id, dest, buffer, size, type, tag, 0, user_ptr, context, hints)
#define BMI_post_sendunexpected_list(id, dest, buffers, sizes, count, total, type, tag, user_ptr, \
                                     context, hints) \
    BMI_post_sendunexpected_list_class(id, dest, buffers, sizes, count, total, type, tag, 0, \
                                       user_ptr, context, hints)
#define BMI_testunexpected(incount, outcount, info_array, max_idle_time_ms) \
    BMI_testunexpected_class(incount, outcount, info_array, 0, max_idle_time_ms)
#endif
int BMI_unexpected_free(BMI_addr_t addr, void *buffer);

/* Completion. */
int BMI_test(bmi_op_id_t id, int *outcount, bmi_error_code_t *error_code, bmi_size_t *actual_size,
             void **user_ptr, int max_idle_time_ms, bmi_context_id context_id);
int BMI_testsome(int incount, bmi_op_id_t *id_array, int *outcount, int *index_array,
                 bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                 void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id);
int BMI_testcontext(int incount, bmi_op_id_t *out_id_array, int *outcount,
                    bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                    void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id);
int BMI_cancel(bmi_op_id_t id, bmi_context_id context_id);

/* Memory. */
void *BMI_memalloc(BMI_addr_t addr, bmi_size_t size, enum bmi_op_type send_recv);
int BMI_memfree(BMI_addr_t addr, void *buffer, bmi_size_t size, enum bmi_op_type send_recv);

/* Addresses. */
#ifdef BMI_API_ORANGEFS
int BMI_addr_lookup(BMI_addr_t *new_addr, const char *id_string, char *bmi_opts);
#else
int BMI_addr_lookup(BMI_addr_t *new_addr, const char *id_string);
#endif
const char *BMI_addr_rev_lookup(BMI_addr_t addr);
const char *BMI_addr_rev_lookup_unexpected(BMI_addr_t addr);
int BMI_query_addr_range(BMI_addr_t addr, const char *id_string, int netmask);

/* Options; enum BMI_options has them. */
int BMI_set_info(BMI_addr_t addr, int option, void *inout_parameter);
int BMI_get_info(BMI_addr_t addr, int option, void *inout_parameter);

#ifdef __cplusplus
}
#endif

#endif
