/* Our own minimal <infiniband/endian.h> of FreeBSD. */
#include <endian.h>
