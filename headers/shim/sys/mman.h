/* Our own <sys/mman.h>: included by headers that do not use it. */
