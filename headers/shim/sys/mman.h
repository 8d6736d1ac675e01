/* Our own <sys/mman.h>: included by headers that use nothing of it. */
