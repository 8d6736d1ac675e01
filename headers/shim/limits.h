/* Our own <limits.h>: included by headers that use nothing of it. */
