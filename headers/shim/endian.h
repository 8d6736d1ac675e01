/* Our own minimal <endian.h>: functions, so that inline functions keep naming them. */
#ifndef GOVERBS_SHIM_ENDIAN_H
#define GOVERBS_SHIM_ENDIAN_H

#include <stdint.h>

#define __LITTLE_ENDIAN __ORDER_LITTLE_ENDIAN__
#define __BIG_ENDIAN __ORDER_BIG_ENDIAN__
#define __BYTE_ORDER __BYTE_ORDER__

uint16_t htobe16(uint16_t v);
uint32_t htobe32(uint32_t v);
uint64_t htobe64(uint64_t v);
uint16_t be16toh(uint16_t v);
uint32_t be32toh(uint32_t v);
uint64_t be64toh(uint64_t v);

#endif
