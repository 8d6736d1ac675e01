// SPDX-License-Identifier: BSD-2-Clause

// Shared declarations of the emulated kernel. preload.c intercepts the device files. uverbs.c and ucma.c (connection
// manager) dispatch commands, which objects.c, memory.c, dm.c, completionqueue.c, srq.c, xrc.c, counter.c, flow.c and
// queuepair.c implement. device.c, payload.c, transport.c and tags.c are the adapter. A driver (mlx5.c, mlx5_queues.c
// and mlx5_tags.c; similarly efa and mlx4) implements the driver-specific command data and the queues of one kind of
// adapter. Drivers without queues (idle.c) process no requests.
#ifndef GOVERBS_EMULATED_H
#define GOVERBS_EMULATED_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <infiniband/verbs.h>

enum { VECTORS = 4, MOST_ENTRIES = (1 << 22) - 1, MOST_REQUESTS = 1 << 15, PAGE = 4096, MOST_TAGS = 127 };
enum { DEVICE_NUMBER = 231 << 8 | 192 }; // major and minor

enum kind { NONE, PD, MR, MW, AH, CHANNEL, CQ, QP, SRQ, XRCD, UAR, COUNTER, OPENED_QP, DM, COUNTERS, FLOW, CONTEXT, CM_ID };

// Events for a program, which reads its end of a socket pair. The third descriptor reads events that the program has
// not read, like a kernel can.
struct events {
	int ours, theirs, unread;
};

// State of the emulated kernel, shared by two programs with testdata/twins.c.
enum { OBJECTS = 1 << 16, QP_LISTS = 256, MOST_IDS = 1 << 16 };
struct kernel {
	pthread_mutex_t mutex; // serializes commands and device threads; guards what follows
	struct file *files;
	struct object *objects[OBJECTS];
	uint32_t highest;           // highest handle used so far
	struct qp *qps[QP_LISTS];   // by number
	uint32_t last_number;       // last queue pair number
	uint64_t last_domain;       // last XRC domain
	struct cm_file *cm_files;
	struct cm_id *cm_ids[MOST_IDS]; // a new ID has the lowest free number, because librdmacm indexes a table with it
	uint8_t variant;            // low byte of keys, so that a reused table entry has a different key
};
extern struct kernel *kernel;

// An open device file, with its context after GET_CONTEXT.
struct file {
	int fd;
	uint64_t generation; // distinguishes a closed descriptor from a new one with the same number
	bool context;
	struct events async;
	struct file *next;
};

struct object {
	enum kind kind;
	uint32_t handle;
	unsigned users; // objects that depend on this one
	struct file *file;
};

struct pd {
	struct object o;
};

struct mr {
	struct object o;
	struct pd *pd;
	uint64_t start, length, va;
	uint32_t access, key;
	struct dm *dm; // the memory of the device that it is part of, or NULL
	void *buffer; // mapping of a dma-buf, or NULL
	size_t size;
};

// Memory of the device.
struct dm {
	struct object o;
	uint64_t length;
	uint8_t *at, *page; // page: its mapping
	size_t size;        // of the mapping
};

// A memory window, bound to a part of a region.
struct mw {
	struct object o;
	struct pd *pd;
	uint32_t key, access, of; // of: key of the region
	uint32_t qp;              // type 2: the queue pair that bound it
	uint64_t address, length;
	bool second, bound; // second: type 2
};

// A handle of an XRC domain: handles that opened the same file share a domain.
struct xrcd {
	struct object o;
	uint64_t domain, device, inode; // inode is 0 without a file
};

// A further handle of an XRC receiver, whose queue pair exists until its last handle is destroyed.
struct opened_qp {
	struct object o;
	struct qp *qp;
	struct xrcd *xrcd;
	uint64_t user;
	uint32_t async_sent;
};

struct ah {
	struct object o;
	struct pd *pd;
	uint8_t to[16];
};

// Memory of the device file that the program maps, shared with the device.
struct mapping {
	uint64_t offset;
	size_t size;
	uint8_t *at;
};

struct channel {
	struct object o;
	struct events events;
};

// A page of doorbells, shared between the program, which maps the device file, and the device.
struct uar {
	struct object o;
	uint64_t offset;
	uint8_t *page;
};

struct cq {
	struct object o;
	uint64_t user;
	struct channel *channel;
	uint32_t entries;
	uint8_t *buffer;
	volatile uint32_t *record; // the doorbell record: [0] consumer index, [1] arm request
	uint32_t entry_size;
	uint32_t produced;  // completions written in total
	uint32_t solicited; // value of produced after the last completion that is solicited or in error
	uint32_t told;      // sequence number of the last arm request that raised an event
	uint32_t comp_sent, async_sent;
	bool overrun;

	uint32_t parts, written[2]; // efa: number of rings, the last one for receives; completions in each
	struct mapping ring, bell; // efa: its doorbell combines consumer index and arm request
	uint32_t seen, guessed;    // efa: last doorbell, start time of unpolled completions, and number of the last speculative event
	uint64_t since;
};

struct srq {
	struct object o;
	struct pd *pd;
	uint64_t user;
	uint8_t *buffer;
	volatile uint32_t *record;
	uint32_t requests, sges, stride, limit; // limit is 0 after its event
	uint16_t head;      // next receive to consume
	uint16_t consumed;  // in units of the program's counter
	uint32_t async_sent;
	struct xrcd *xrcd; // XRC only, like the next two
	struct cq *cq;
	uint32_t user_index;
	struct tags *tags; // tag matching only; completions of tags also go to cq
};

// Operations to count, by the bits that programs select them with.
enum countable { SENDS, RECEIVES, READS_DONE, READS_SERVED, WRITES_DONE, WRITES_SERVED, COUNTABLE };

// Ends of dynamic connections: an initiator's requests name their targets.
enum dynamic { CONNECTED, INITIATOR, TARGET };

struct qp {
	struct object o;
	struct qp *next; // in the hash list of its number
	struct xrcd *xrcd; // XRC receiver; the following fields are those of its last request
	struct pd *pd;
	struct cq *send_cq, *recv_cq;
	struct srq *srq;
	uint64_t user;
	uint32_t number, type, async_sent;
	bool all_signaled;
	struct ib_uverbs_qp_attr attr;

	uint8_t *rq, *sq;
	volatile uint32_t *record; // [0] receives posted, [1] blocks of sends posted
	uint32_t rq_wqes, rq_stride, sq_blocks, user_index;
	uint16_t rq_head, sq_head; // next receive and send to consume

	uint32_t scatter;  // maximum size of messages inside completions
	uint64_t deadline; // end of retries for the request at the head; 0 if not tried yet
	bool established;

	// Memory that the device reads, or that is recorded. efa bells: [0] sends posted, [1] receives posted, each in 16
	// bits of a word.
	struct mapping receives, sends, bells;
	uint32_t entry_size;                   // size of a send
	uint16_t seen;                         // receives announced by the doorbell
	bool unsolicited;                      // writes with immediate data consume no receive
	struct waiting *waiting;               // requests that are retried while others proceed
	struct counter *counters[COUNTABLE];
	enum dynamic dynamic;
	uint64_t access_key; // target
	struct rendezvous *rendezvous;         // data for tags, read before further requests
};

// An SGE.
struct piece {
	uint64_t address;
	uint32_t length, key;
};

enum { PIECES = 64, INLINE_BYTES = 1024 };

enum operation { OP_SEND, OP_WRITE, OP_READ, OP_COMPARE_SWAP, OP_FETCH_ADD, OP_BIND, OP_TAGS,
	OP_NONE, OP_UNKNOWN };

// A request to bind a window. Length 0 unbinds.
struct binding {
	uint32_t key, of, access;
	uint8_t variant; // the low byte of the window's next key
	uint64_t address, length;
};

// Changes of a tag list, by operations and by messages.
enum tag_kind {
	TAG_ADDED, TAG_REMOVED, TAG_SEEN, // operations; TAG_SEEN has the number of unexpected messages seen
	TAG_MESSAGE,                      // matched, complete
	TAG_MATCHED, TAG_DATA,            // the same, as two completions
	TAG_LONGER,                       // announced data exceeds the tag's buffer
	TAG_CANCELED,                     // announced data will not arrive
	TAG_UNEXPECTED, TAG_NONE,         // without a matching tag, or without a tag
};

struct tag_operation {
	enum tag_kind kind;
	bool signaled, counted;
	uint16_t seen;  // unexpected messages, if counted
	uint16_t place; // index of the tag to remove; for additions, that of the next addition
	uint64_t tag, mask;
};

// The tag header of a message, in network order.
struct tag_header {
	uint8_t kind, reserved[3];
	uint32_t own;
	uint64_t tag;
};

// A send request, parsed by the driver.
struct request {
	enum operation operation;
	bool signaled, solicited, with_immediate, with_invalidate;
	uint32_t immediate; // in network order; with_invalidate: key in host order
	uint64_t remote;
	uint32_t remote_key;
	uint64_t compare, swap;
	uint32_t to_qp, to_key; // datagrams
	uint32_t to_srq;        // XRC
	uint64_t access_key;    // of a target
	bool elsewhere;         // the datagram's destination is outside this process
	struct binding binding; // OP_BIND
	struct tag_operation tags; // OP_TAGS
	int pieces;
	struct piece piece[PIECES];
	uint32_t inlined; // bytes of inline data
	uint16_t header, segment; // raw packets: bytes of inline data in each packet, and bytes of further data, or 0
	uint8_t data[INLINE_BYTES];

	uint8_t opcode; // native opcode, index and size, repeated in the completion
	uint16_t index, blocks;
	uint8_t more_index[6]; // efa: upper bits of 64-bit request numbers
};

struct receive {
	int pieces;
	struct piece piece[PIECES];
	uint16_t index;
	bool unsolicited; // no receive, only a completion
};

enum status {
	OK, LOCAL_LENGTH, LOCAL_OPERATION, LOCAL_PROTECTION, FLUSHED, REMOTE_INVALID, REMOTE_ACCESS, REMOTE_OPERATION,
	RETRIES, RNR_RETRIES, LOCAL_ACCESS, WINDOW, NOBODY, STRANGER, AGAIN, DROPPED,
};

struct tagged {
	enum tag_kind kind;
	uint16_t place, unexpected; // unexpected: number of unexpected messages so far
	bool done;                  // the tag to remove existed
	const struct tag_header *header;
};

struct completion {
	struct qp *qp;
	enum status status;
	const struct request *request; // the sender's request, also at the receiver
	const struct receive *receive; // NULL at the sender
	struct qp *from;
	uint32_t length;
	const uint8_t *inside; // the message, if the completion carries it
	bool global; // has a GRH
	const struct tagged *tagged; // on a shared receive queue with tags
};

// A command of INVOKE_WRITE.
struct call {
	struct file *file;
	const uint8_t *in, *driver_in;
	uint8_t *out, *driver_out;
	size_t in_size, driver_in_size, out_size, driver_out_size;
};

struct command {
	uint32_t number;
	int (*run)(struct call *);
};

struct gid {
	uint8_t raw[16];
	uint32_t type;
};

struct driver {
	const char *name;
	uint32_t id, abi; // netlink identifier; without it the adapter is found only in sysfs
	const struct ib_uverbs_query_device_resp *device;
	const struct ib_uverbs_query_port_resp *port;
	const struct gid *gids;
	unsigned gid_count;
	uint32_t most_numbers; // mask of queue pair numbers
	uint32_t target;       // additional bit in the numbers of XRC receivers
	uint32_t datagram;     // maximum size of a datagram
	uint64_t device_memory; // for programs, in bytes
	bool packets;          // its queue pairs send raw packets
	bool no_reset;         // its provider does not reset counters
	bool timestamps;       // in completions, in nanoseconds
	bool dynamic;          // has dynamic connections
	bool scalable;         // only datagrams, also reliable ones; queue pairs survive failed requests
	int (*get_context)(struct call *);
	int (*query_device)(struct call *);
	int (*alloc_pd)(struct call *, struct pd *);
	int (*alloc_dm)(struct ib_uverbs_ioctl_hdr *, struct dm *);
	int (*create_ah)(struct call *, struct ah *);
	int (*create_cq)(struct call *, struct cq *);
	int (*resize_cq)(struct call *, struct cq *, uint32_t entries);
	int (*create_srq)(struct call *, struct srq *);
	int (*create_qp)(struct call *, struct qp *);
	int (*target_ready)(struct call *, const struct qp *); // answers a target's change to RTR
	void (*reset_qp)(struct qp *);
	void (*record_qp)(const struct qp *);
	void (*record_srq)(const struct srq *); // may be NULL
	int (*ioctl)(struct file *, struct ib_uverbs_ioctl_hdr *); // driver-specific methods

	void (*release)(struct object *);                   // releases driver state of an object
	bool (*knows)(struct pd *);                         // does the receiver have an address handle for the sender?

	bool (*rung)(void);                                 // was a doorbell rung since the last call?
	bool (*next_send)(struct qp *, struct request *);   // reads the head of the queue
	bool (*next_receive)(struct qp *, struct receive *);
	void (*consume_receive)(struct qp *, const struct receive *);
	bool (*complete)(struct cq *, const struct completion *); // false: the queue is full
	bool (*take_request)(struct cq *); // is an event requested and due? Consumes the request
};

extern const struct driver mlx5, efa, mlx4, erdma, mana, irdma, bnxt_re, hns;
extern const struct driver *driver;

// uverbs.c
int uverbs_ioctl(struct file *, struct ib_uverbs_ioctl_hdr *);
int take(struct call *, void *, size_t);                    // reads the input of the command
int answer(struct call *, const void *, size_t);            // truncated to the program's buffer
int take_driver(struct call *, void *, size_t);
int answer_driver(struct call *, const void *, size_t);
int refuse(const char *what, uint64_t which);               // reports an unsupported feature on standard error: EOPNOTSUPP
struct ib_uverbs_attr *attribute(struct ib_uverbs_ioctl_hdr *, uint16_t);
bool give(struct ib_uverbs_ioctl_hdr *, uint16_t, const void *, size_t);

// objects.c
void *new_object(struct file *, enum kind, size_t);
void *find_object(struct file *, enum kind, uint32_t handle);
struct object *object_of(uint32_t handle); // of any file
void free_object(struct object *);
int destroy_object(struct object *); // may be NULL
void free_objects(struct file *);
void each(enum kind, void (*)(void *));
bool infiniband(void); // link layer; otherwise Ethernet
extern const uint8_t node_guid[8];
extern const struct command object_commands[];

// counts.c
void hold(enum kind, int more);
void system_call(const char *name, unsigned command);

// gid.c
int query_gids(struct ib_uverbs_ioctl_hdr *);

// memory.c
bool mapped(uint64_t address);
uint8_t *look_up(struct qp *, uint64_t address, uint32_t length, uint32_t key, uint32_t access);
bool bind_window(struct qp *, const struct binding *);
bool invalidate(struct qp *, uint32_t key);
int reg_dmabuf(struct file *, struct ib_uverbs_ioctl_hdr *);
extern const struct command memory_commands[];

// dm.c
int dm_ioctl(struct file *, struct ib_uverbs_ioctl_hdr *);

// flow.c
bool steered(const struct qp *); // does it have a rule?
int counters_ioctl(struct file *, struct ib_uverbs_ioctl_hdr *);
extern const struct command flow_commands[];

// record.c
bool recording(void);
void record_words(const char *what, const void *, size_t);
void record_bytes(const char *what, const void *, size_t);
void record_call(const struct call *, uint32_t number);
void record_method(const struct ib_uverbs_ioctl_hdr *);
void record_qp(const struct qp *);

// events.c
bool open_events(struct events *);
void close_events(struct events *);
bool send_event(struct events *, const void *, size_t);
uint32_t drop_unread(struct events *, size_t size, uint64_t element);
void async_event(struct file *, uint32_t type, uint64_t element, uint32_t *sent);

// completionqueue.c
void close_channel(int fd);
extern const struct command completion_commands[];

// queuepair.c
extern const struct command queue_commands[];
struct qp *find_qp(uint32_t number);
void release_qp(struct qp *);
void release_opened_qp(struct opened_qp *);
void qp_event(struct qp *, uint32_t type);
void fail_qp(struct qp *);

// srq.c
extern const struct command srq_commands[];

// counter.c
int counter_ioctl(struct file *, struct ib_uverbs_ioctl_hdr *);
void count(struct qp *, enum countable, bool succeeded);
void forget_counters(struct qp *);

// xrc.c
bool aim(struct qp *, uint32_t number);
extern const struct command xrc_commands[];

// transport.c
uint64_t now(void); // microseconds
void run_queues(void);
void drop_waiting(struct qp *);

// tags.c
struct tags *new_tags(uint32_t most);
void drop_rendezvous(struct qp *);

// device.c
void device_lock(void), device_unlock(void);
void start_device(void);
void drop(void *); // frees memory possibly allocated by the other program
void catch_up(void);
bool still(void);

// netlink.c
void close_netlink(int fd);

// ucma.c: the connection manager's device file
int open_cm(int flags);
bool is_cm(int fd);
void close_cm(int fd);

// preload.c
void *map_device(struct file *, uint64_t offset, size_t);
bool make_mapping(struct file *, struct mapping *, size_t);
void drop_mapping(struct mapping *);

#define TAKE(call, what) do { if (take(call, &(what), sizeof(what))) return EINVAL; } while (0)

#endif
