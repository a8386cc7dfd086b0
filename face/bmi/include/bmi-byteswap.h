/* Numbers as BMI messages carry them: little endian. Written for Ropewalk. */
#ifndef ROPEWALK_BMI_BYTESWAP_H
#define ROPEWALK_BMI_BYTESWAP_H

#include <endian.h>

#define htobmi64(number) htole64(number)
#define htobmi32(number) htole32(number)
#define htobmi16(number) htole16(number)
#define bmitoh64(number) le64toh(number)
#define bmitoh32(number) le32toh(number)
#define bmitoh16(number) le16toh(number)

#endif
