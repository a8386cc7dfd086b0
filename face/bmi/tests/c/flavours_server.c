/* The half of `flavours` that was written for OrangeFS's interface. */
#ifndef BMI_API_ORANGEFS
#define BMI_API_ORANGEFS
#endif
#include "check.h"

void orangefs_half(char *url, size_t room);
void orangefs_answer(bmi_context_id context);

void orangefs_half(char *url, size_t room)
{
    serve("shm", url, room);
}

void orangefs_answer(bmi_context_id context)
{
    struct BMI_unexpected_info info = wait_unexpected();
    BMI_addr_t again;
    CHECK(info.tag == 12 && info.size == 4);
    CHECK(send_to(info.addr, info.buffer, info.size, 13, context) == 0);
    CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
    CHECK(LOOKUP(&again, "tcp://localhost:1") == 0);
}
