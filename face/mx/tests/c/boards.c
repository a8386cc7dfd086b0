/* Says how mx_init and an endpoint under any number on any board go. */
#include "check.h"

/* Calls that MX declared: they are there to be linked to. */
static void never(mx_endpoint_t endpoint, mx_request_t *request)
{
    mx_endpoint_addr_t nobody;
    uint32_t result;
    memset(&nobody, 0, sizeof nobody);
    mx_iput(endpoint, NULL, 0, nobody, 0, NULL, request);
    mx_iget(endpoint, NULL, 0, nobody, 0, NULL, request);
    mx_buffered(endpoint, request, 0, &result);
    mx_register_unexp_callback(endpoint, NULL, NULL);
}

int main(int count, char **words)
{
    mx_endpoint_t endpoint = NULL;
    mx_request_t request = NULL;
    mx_return_t code = mx_init();
    printf("init %d\n", code);
    if (code != MX_SUCCESS)
        return 0;
    code = mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &endpoint);
    printf("open %d\n", code);
    if (count > 1 && strcmp(words[1], "never") == 0)
        never(endpoint, &request);
    if (code == MX_SUCCESS)
        OK(mx_close_endpoint(endpoint));
    OK(mx_finalize());
    return 0;
}
