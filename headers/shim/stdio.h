/* Our own minimal <stdio.h>: only pointers to FILE are used. */
#ifndef GOVERBS_SHIM_STDIO_H
#define GOVERBS_SHIM_STDIO_H

typedef struct _IO_FILE FILE;

#endif
