/* Both flavours of the interface in one process: each half was compiled for one of them. */
#include "check.h"

void orangefs_half(char *url, size_t room);
void orangefs_answer(bmi_context_id context);

int main(void)
{
    char url[512], back[8];
    bmi_context_id context;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    BMI_addr_t self;
    alarm(HANG_SECONDS);
    orangefs_half(url, sizeof url);
    CHECK(BMI_initialize("bmi_shm", NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(BMI_addr_lookup(&self, url) == 0);
    CHECK(BMI_post_recv(&id, self, back, 8, &got, BMI_EXT_ALLOC, 13, NULL, context, NULL) == 0);
    CHECK(send_unexpected_to(self, "four", 4, 12, context) == 0);
    orangefs_answer(context);
    CHECK(finish(0, id, &got, context) == 0 && got == 4 && memcmp(back, "four", 4) == 0);
    CHECK(BMI_finalize() == 0);
    CHECK(BMI_get_info(0, BMI_CHECK_INIT, NULL) == 0);
    CHECK(BMI_finalize() == 0);
    CHECK(BMI_get_info(0, BMI_CHECK_INIT, NULL) < 0);
    puts("ok");
    return 0;
}
