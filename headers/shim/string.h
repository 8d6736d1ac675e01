/* Our own minimal <string.h>. */
#ifndef GOVERBS_SHIM_STRING_H
#define GOVERBS_SHIM_STRING_H

#include <stddef.h>

void *memset(void *to, int byte, size_t length);
void *memcpy(void *to, const void *from, size_t length);

#endif
