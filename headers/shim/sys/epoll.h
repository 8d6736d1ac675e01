/* Our own minimal <sys/epoll.h>: the structure is packed on x86 only, and only pointers to it are used. */
#ifndef GOVERBS_SHIM_SYS_EPOLL_H
#define GOVERBS_SHIM_SYS_EPOLL_H

struct epoll_event;

#endif
