/*
 * Our own minimal <linux/ioctl.h>. Machines pack the direction in two ways; for a command that both reads and writes, the number
 * is the same.
 */
#ifndef GOVERBS_SHIM_LINUX_IOCTL_H
#define GOVERBS_SHIM_LINUX_IOCTL_H

#define _IOWR(magic, number, type) (0xc0000000U | sizeof(type) << 16 | (magic) << 8 | (number))

#endif
