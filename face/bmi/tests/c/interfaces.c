/* A lookup of a client that is told by which interfaces it calls. Says what became of it. Usage: interfaces URL */
#include "check.h"

int main(int argc, char **argv)
{
    BMI_addr_t to;
    int error;
    CHECK(argc == 2);
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    error = LOOKUP(&to, argv[1]);
    puts(error == 0 ? "found" : bmi_status_string(error));
    /* What needs no interface is found in any case. */
    CHECK(LOOKUP(&to, "shm://somebody") == 0);
    CHECK(BMI_finalize() == 0);
    return 0;
}
