/* Our own minimal <stddef.h>. offsetof has a form that the parser recognizes in inline functions. */
#ifndef GOVERBS_SHIM_STDDEF_H
#define GOVERBS_SHIM_STDDEF_H

typedef __SIZE_TYPE__ size_t;

#define NULL ((void *)0)
#define offsetof(type, member) ((size_t)&((type *)0)->member)

#endif
