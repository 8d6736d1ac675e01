/* Our own <limits.h>: included by headers that do not use it. */
