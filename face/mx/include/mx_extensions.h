/* Programs for MX include it beside myriexpress.h, which has all that works. These four were declared by MX, which had
   none of them: they are here to be linked to, and end a program that calls them. */
#ifndef MX_EXTENSIONS_H
#define MX_EXTENSIONS_H

#include "myriexpress.h"

#ifdef __cplusplus
extern "C" {
#endif

mx_return_t mx_iput(mx_endpoint_t endpoint, void *local, uint32_t length, mx_endpoint_addr_t to,
                    uint64_t remote, void *context, mx_request_t *request);
mx_return_t mx_iget(mx_endpoint_t endpoint, void *local, uint32_t length, mx_endpoint_addr_t from,
                    uint64_t remote, void *context, mx_request_t *request);
mx_return_t mx_buffered(mx_endpoint_t endpoint, mx_request_t *request, uint32_t timeout,
                        uint32_t *result);
typedef void (*mx_matching_callback_t)(void *context, uint64_t match_value, int length);
mx_return_t mx_register_unexp_callback(mx_endpoint_t endpoint, mx_matching_callback_t callback,
                                       void *context);

#ifdef __cplusplus
}
#endif

#endif
