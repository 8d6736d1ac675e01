/* Our own minimal <linux/if_ether.h>. */
#ifndef GOVERBS_SHIM_LINUX_IF_ETHER_H
#define GOVERBS_SHIM_LINUX_IF_ETHER_H

#define ETH_ALEN 6

#endif
