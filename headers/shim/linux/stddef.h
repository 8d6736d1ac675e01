/*
 * Our own minimal <linux/stddef.h>. The real one puts an empty structure before a flexible array in a union, which C requires
 * there and which has no size.
 */
#ifndef GOVERBS_SHIM_LINUX_STDDEF_H
#define GOVERBS_SHIM_LINUX_STDDEF_H

#define __DECLARE_FLEX_ARRAY(type, name) struct { type name[]; }

#endif
