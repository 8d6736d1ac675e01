// SPDX-License-Identifier: BSD-2-Clause

// Connections: /dev/infiniband/rdma_cm, to which librdmacm writes its commands. Both ends of a connection are in this
// process, so a message is a state change and an event. ucma.c has files, IDs and events, ucma_address.c address and
// route resolution, ucma_connect.c the rest.
#ifndef GOVERBS_UCMA_H
#define GOVERBS_UCMA_H

#include <sys/socket.h>

#include <rdma/rdma_user_cm.h>

#include "emulated.h"

// Events as in rdma_cm.h.
enum {
	ADDR_RESOLVED, ADDR_ERROR, ROUTE_RESOLVED, ROUTE_ERROR, CONNECT_REQUEST, CONNECT_RESPONSE, CONNECT_ERROR,
	UNREACHABLE, REJECTED, ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT = 15,
};

enum cm_state {
	CM_IDLE, CM_BOUND, CM_LISTENING, CM_ADDRESS, CM_ROUTE, // the last two: address or route resolved
	CM_REQ_SENT, CM_REQ_RCVD, CM_REP_SENT, CM_REP_RCVD, CM_ESTABLISHED, CM_DREQ_SENT, CM_DREQ_RCVD, CM_OVER,
};

// A message, or one end's view of the other.
struct cm_message {
	struct rdma_ucm_conn_param param;
	struct rdma_ucm_ece ece;
	uint32_t psn;
};

struct cm_id {
	uint32_t number;
	uint64_t uid; // the program's identifier; an unaccepted request has none and gets no events
	struct cm_file *file;
	enum cm_state state;
	uint16_t space;
	uint8_t type; // of queue pairs
	struct sockaddr_storage from, to;
	int gid; // GID index of the bound address, or -1
	bool reuse, family_only, family_said, timeout_said;
	bool active; // sent the request
	uint8_t tos, timeout;
	uint32_t psn, backlog, reported; // reported: events that the program has read
	struct cm_id *peer;
	struct cm_message said, heard;
};

struct cm_event {
	struct rdma_ucm_event_resp r;
	struct cm_id *id, *child; // child: ID of a request
	struct cm_event *next;
};

// A file is readable while it has events.
struct cm_file {
	int fd;
	struct cm_event *events;
	struct cm_file *next;
};

// A command and its response.
struct cm_call {
	struct cm_file *file;
	const uint8_t *in;
	size_t in_size, out_size;
};

// ucma.c
struct cm_id *new_cm_id(struct cm_file *);
struct cm_id *find_cm_id(struct cm_call *, uint32_t number);
struct cm_id *next_cm_id(uint32_t *at); // iterates over all IDs, from 0
void forget_cm_id(struct cm_id *);
void queue_event(struct cm_id *, uint32_t event, int32_t status, const struct cm_message *);
void tell_request(struct cm_id *listener, struct cm_id *child);
uint32_t unread_requests(struct cm_id *listener);
int cm_answer(uint64_t response, size_t room, const void *from, size_t size);

// ucma_address.c
int cm_bind(struct cm_call *), cm_resolve_addr(struct cm_call *), cm_resolve_route(struct cm_call *),
	cm_query(struct cm_call *), cm_set_option(struct cm_call *), cm_listen(struct cm_call *);
struct cm_id *listener_of(const struct cm_id *);

// ucma_connect.c
int cm_connect(struct cm_call *), cm_accept(struct cm_call *), cm_reject(struct cm_call *),
	cm_disconnect(struct cm_call *), cm_notify(struct cm_call *), cm_init_qp_attr(struct cm_call *);
void end_connection(struct cm_id *); // for an ID that is destroyed

#define TAKE_CM(call, what) do { \
	if ((call)->in_size < sizeof(what)) return EINVAL; \
	memcpy(&(what), (call)->in, sizeof(what)); } while (0)

#endif
