/* Our own minimal <stdbool.h>. */
#ifndef GOVERBS_SHIM_STDBOOL_H
#define GOVERBS_SHIM_STDBOOL_H

#define bool _Bool
#define true 1
#define false 0

#endif
