// SPDX-License-Identifier: BSD-2-Clause

// RDMA netlink, as far as libibverbs uses it: list devices and their drivers. Some providers identify their devices
// only by driver. Adapters without a netlink identifier are found in sysfs. The socket is one of a pair.
#define _GNU_SOURCE
#include <endian.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/rdma_netlink.h>

#include "emulated.h"

struct netlink {
	int fd, ours;
	struct sockaddr_nl bound;
	struct netlink *next;
};
static struct netlink *sockets;

static struct netlink *netlink_of(int fd)
{
	struct netlink *n = sockets;
	while (n && n->fd != fd)
		n = n->next;
	return n;
}

static int new_socket(int type)
{
	int pair[2];
	struct netlink *n = calloc(1, sizeof *n);
	if (!n || socketpair(AF_UNIX, SOCK_SEQPACKET | (type & SOCK_CLOEXEC), 0, pair)) {
		free(n);
		return -1;
	}
	n->fd = pair[0], n->ours = pair[1];
	device_lock();
	n->next = sockets, sockets = n;
	device_unlock();
	return n->fd;
}

// Make libibverbs see only the emulated adapter.
int socket(int domain, int type, int protocol)
{
	if (domain != AF_NETLINK || protocol != NETLINK_RDMA)
		return syscall(SYS_socket, domain, type, protocol);
	if (driver->id)
		return new_socket(type);
	errno = EPROTONOSUPPORT;
	return -1;
}

void close_netlink(int fd)
{
	for (struct netlink **at = &sockets; *at; at = &(*at)->next) {
		struct netlink *n = *at;
		if (n->fd != fd)
			continue;
		syscall(SYS_close, n->ours);
		*at = n->next;
		free(n);
		return;
	}
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	device_lock();
	struct netlink *n = netlink_of(fd);
	if (n && length >= sizeof n->bound)
		memcpy(&n->bound, address, sizeof n->bound);
	device_unlock();
	return n ? 0 : syscall(SYS_bind, fd, address, length);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
	device_lock();
	struct netlink *n = netlink_of(fd);
	struct sockaddr_nl bound = n ? n->bound : (struct sockaddr_nl){0};
	device_unlock();
	if (!n)
		return syscall(SYS_getsockname, fd, address, length);
	memcpy(address, &bound, *length < sizeof bound ? *length : sizeof bound);
	*length = sizeof bound;
	return 0;
}

// Answers

struct message {
	struct nlmsghdr head;
	uint8_t attributes[256];
};

static void put(struct message *m, uint16_t type, const void *value, size_t size)
{
	struct nlattr a = {.nla_len = NLA_HDRLEN + size, .nla_type = type};
	uint8_t *at = (uint8_t *)m + NLMSG_ALIGN(m->head.nlmsg_len);
	memcpy(at, &a, sizeof a);
	memcpy(at + NLA_HDRLEN, value, size);
	m->head.nlmsg_len = NLMSG_ALIGN(m->head.nlmsg_len) + NLA_ALIGN(a.nla_len);
}

#define PUT(m, type, value) do { __typeof__(value) v_ = (value); put(m, type, &v_, sizeof v_); } while (0)

static void describe(struct message *m)
{
	char name[64];
	int n = snprintf(name, sizeof name, "%s_0", driver->name);
	PUT(m, RDMA_NLDEV_ATTR_DEV_INDEX, (uint32_t)0);
	put(m, RDMA_NLDEV_ATTR_DEV_NAME, name, n + 1);
	uint64_t guid;
	memcpy(&guid, node_guid, sizeof guid);
	PUT(m, RDMA_NLDEV_ATTR_NODE_GUID, be64toh(guid));
	PUT(m, RDMA_NLDEV_ATTR_PORT_INDEX, (uint32_t)1);
	PUT(m, RDMA_NLDEV_ATTR_DEV_NODE_TYPE, (uint8_t)1);
}

static void describe_file(struct message *m)
{
	put(m, RDMA_NLDEV_ATTR_CHARDEV_NAME, "uverbs0", sizeof "uverbs0");
	PUT(m, RDMA_NLDEV_ATTR_CHARDEV, (uint64_t)DEVICE_NUMBER);
	PUT(m, RDMA_NLDEV_ATTR_CHARDEV_ABI, (uint64_t)driver->abi);
	PUT(m, RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, (uint32_t)driver->id);
}

// asks_for_cm: sysfs describes the connection manager's file; librdmacm looks there if netlink has no answer.
static bool asks_for_cm(const struct nlmsghdr *q, size_t size)
{
	static const char name[] = "rdma_cm";
	return memmem(q, size, name, sizeof name);
}

static void answer_netlink(struct netlink *n, const struct nlmsghdr *q, size_t size)
{
	struct message m = {.head = {.nlmsg_len = NLMSG_HDRLEN, .nlmsg_type = q->nlmsg_type, .nlmsg_seq = q->nlmsg_seq,
		.nlmsg_pid = q->nlmsg_pid}};
	uint16_t operation = RDMA_NL_GET_OP(q->nlmsg_type);
	if (operation == RDMA_NLDEV_CMD_GET && q->nlmsg_flags & NLM_F_DUMP) {
		m.head.nlmsg_flags = NLM_F_MULTI;
		describe(&m);
		send(n->ours, &m, m.head.nlmsg_len, MSG_NOSIGNAL);
		m.head.nlmsg_type = NLMSG_DONE;
		memset(m.attributes, 0, sizeof(int));
		m.head.nlmsg_len = NLMSG_HDRLEN + sizeof(int);
	} else if (operation == RDMA_NLDEV_CMD_GET_CHARDEV && !asks_for_cm(q, size)) {
		describe_file(&m);
	} else {
		struct nlmsgerr e = {.error = -EOPNOTSUPP, .msg = *q};
		memcpy(m.attributes, &e, sizeof e);
		m.head.nlmsg_type = NLMSG_ERROR, m.head.nlmsg_len = NLMSG_HDRLEN + sizeof e;
	}
	send(n->ours, &m, m.head.nlmsg_len, MSG_NOSIGNAL);
}

ssize_t sendmsg(int fd, const struct msghdr *h, int flags)
{
	device_lock();
	struct netlink *n = netlink_of(fd);
	const struct nlmsghdr *q = n && h->msg_iovlen ? h->msg_iov[0].iov_base : NULL;
	if (q && h->msg_iov[0].iov_len >= sizeof *q)
		answer_netlink(n, q, h->msg_iov[0].iov_len);
	device_unlock();
	return n ? (ssize_t)h->msg_iov[0].iov_len : syscall(SYS_sendmsg, fd, h, flags);
}

ssize_t recvmsg(int fd, struct msghdr *h, int flags)
{
	device_lock();
	struct netlink *n = netlink_of(fd);
	device_unlock();
	if (!n)
		return syscall(SYS_recvmsg, fd, h, flags);
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	void *name = h->msg_name;
	h->msg_name = NULL, h->msg_namelen = 0;
	ssize_t r = syscall(SYS_recvmsg, fd, h, flags);
	h->msg_name = name;
	if (name)
		memcpy(name, &kernel, sizeof kernel), h->msg_namelen = sizeof kernel;
	return r;
}
