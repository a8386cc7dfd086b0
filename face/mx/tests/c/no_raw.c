/* A board on which no MXoE is spoken, as the environment names it. usage: no_raw */
#include "check.h"

#include <mx_raw.h>

int main(void)
{
    mx_raw_endpoint_t raw = NULL;
    mx_set_error_handler(MX_ERRORS_RETURN);
    OK(mx_init());
    CHECK(mx_raw_open_endpoint(0, NULL, 0, &raw) == MX_NO_DEV && raw == NULL);
    OK(mx_finalize());
    printf("ok\n");
    return 0;
}
