// SPDX-License-Identifier: BSD-2-Clause

// The emulated kernel: what its parts know of each other. preload.c gives it the device file, uverbs.c reads
// commands (ucma.c those of the connection manager), objects.c, memory.c, completionqueue.c, srq.c, xrc.c, counter.c and queuepair.c carry them out, device.c,
// payload.c, transport.c and tags.c are the adapter, and a driver (mlx5.c, mlx5_queues.c, mlx5_tags.c; efa and mlx4
// likewise) knows one kind: what its commands carry beside the usual, and its queues. Drivers without queues (idle.c)
// leave in them what is posted.
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

enum kind { NONE, PD, MR, MW, AH, CHANNEL, CQ, QP, SRQ, XRCD, UAR, COUNTER, CONTEXT, CM_ID };

// Events for a program: what it reads from its end of a pair of sockets. The third descriptor reads what the program
// has not read, as a kernel may do.
struct events {
	int ours, theirs, unread;
};

// What the emulated kernel knows of its programs: with testdata/twins.c, of two in one address space.
enum { OBJECTS = 1 << 16, QP_LISTS = 256, MOST_IDS = 1 << 16 };
struct kernel {
	pthread_mutex_t mutex; // commands and the devices' threads take turns; it guards what follows
	struct file *files;
	struct object *objects[OBJECTS];
	uint32_t highest;           // handle that was ever used
	struct qp *qps[QP_LISTS];   // by number
	uint32_t last_number;       // of a queue pair
	uint64_t last_domain;       // of extended connections
	struct cm_file *cm_files;
	struct cm_id *cm_ids[MOST_IDS]; // a new ID has the lowest number, because librdmacm makes a table of them
	uint8_t variant;            // of keys, so that an old key of a place in the table is not the next one's
};
extern struct kernel *kernel;

// An opened device file, and the context that it has after GET_CONTEXT.
struct file {
	int fd;
	uint64_t generation; // tells a closed file's descriptor from a new one of the same number
	bool context;
	struct events async;
	struct file *next;
};

struct object {
	enum kind kind;
	uint32_t handle;
	unsigned users; // objects that were made with this one
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
};

// A memory window: where it is bound, a part of a region that its key opens.
struct mw {
	struct object o;
	struct pd *pd;
	uint32_t key, access, of; // of is the region's key
	uint32_t qp;              // of a window of type 2: the queue pair that has bound it
	uint64_t address, length;
	bool second, bound; // second: of type 2
};

// A domain of extended connections, or one more handle of it: those that opened the same file share a domain.
struct xrcd {
	struct object o;
	uint64_t domain, device, inode; // inode is 0 where no file names it
};

struct ah {
	struct object o;
	struct pd *pd;
	uint8_t to[16];
};

// What a program maps from the device file, and the device sees as well.
struct mapping {
	uint64_t offset;
	size_t size;
	uint8_t *at;
};

struct channel {
	struct object o;
	struct events events;
};

// A page of doorbells: the program maps it from the device file, and the device sees the same page.
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
	volatile uint32_t *record; // the doorbell record: [0] what the program has consumed, [1] what it asked to be told
	uint32_t entry_size;
	uint32_t produced;  // completions written since it was made
	uint32_t solicited; // the value of produced behind the last completion that is solicited or an error
	uint32_t told;      // the sequence number of the last request that an event answered
	uint32_t comp_sent, async_sent;
	bool overrun;

	uint32_t parts, written[2]; // of efa: queues that it consists of, the last one for receives; completions in each
	struct mapping ring, bell; // of efa, whose doorbell has the consumed and the request in one word
	uint32_t seen, guessed;    // that word, since when it leaves completions lie, and the number of the last guess
	uint64_t since;
};

struct srq {
	struct object o;
	struct pd *pd;
	uint64_t user;
	uint8_t *buffer;
	volatile uint32_t *record;
	uint32_t requests, sges, stride, limit; // limit is 0 once an event told of it
	uint16_t head;      // the receive that is consumed next
	uint16_t consumed;  // as the program's counter counts
	uint32_t async_sent;
	struct xrcd *xrcd; // of one for extended connections, with the next two
	struct cq *cq;
	uint32_t user_index;
	struct tags *tags; // of one that matches them, whose completions also come to cq
};

// What is counted, by the bits that programs ask for it with.
enum countable { SENDS, RECEIVES, READS_DONE, READS_SERVED, WRITES_DONE, WRITES_SERVED, COUNTABLE };

struct qp {
	struct object o;
	struct qp *next; // in the table of its number
	struct xrcd *xrcd; // of a receiver of extended connections: what is below is that of its last request
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
	uint16_t rq_head, sq_head; // what the device consumes next

	uint32_t scatter;  // messages up to this size may come inside the completion
	uint64_t deadline; // until when the request at the head is tried again; 0 for not yet tried
	bool established;

	// What the device sees, or a record shows. The bells of efa: [0] sends posted, [1] receives posted, each 16 bits
	// of a word.
	struct mapping receives, sends, bells;
	uint32_t entry_size;                   // of a send
	uint16_t seen;                         // receives that the doorbell said
	bool unsolicited;                      // writes with immediate data take no receive
	struct waiting *waiting;               // requests that are tried again while others go on
	struct counter *counters[COUNTABLE];
	struct rendezvous *rendezvous;         // data for tags, to be read before further requests
};

// Where data lies, by keys.
struct piece {
	uint64_t address;
	uint32_t length, key;
};

enum { PIECES = 64, INLINE_BYTES = 1024 };

enum operation { OP_SEND, OP_WRITE, OP_READ, OP_COMPARE_SWAP, OP_FETCH_ADD, OP_BIND, OP_TAGS,
	OP_NONE, OP_UNKNOWN };

// What is asked for a window: no length takes the binding away.
struct binding {
	uint32_t key, of, access;
	uint8_t variant; // the low byte of the window's next key
	uint64_t address, length;
};

// What becomes of a list of tags, by operations and by messages.
enum tag_kind {
	TAG_ADDED, TAG_REMOVED, TAG_SEEN, // operations; TAG_SEEN says how many unexpected messages were seen
	TAG_MESSAGE,                      // has matched, and is whole
	TAG_MATCHED, TAG_DATA,            // the same one after the other
	TAG_LONGER,                       // data was announced that the tag has no room for
	TAG_CANCELED,                     // data that was announced will not come
	TAG_UNEXPECTED, TAG_NONE,         // matches none, or has none
};

struct tag_operation {
	enum tag_kind kind;
	bool signaled, counted;
	uint16_t seen;  // unexpected messages, if counted
	uint16_t place; // of the tag to be removed; where a tag is added, of the one that will be added after it
	uint64_t tag, mask;
};

// What a message begins with that may match a tag, numbers in network order.
struct tag_header {
	uint8_t kind, reserved[3];
	uint32_t own;
	uint64_t tag;
};

// A send request as the driver read it from the queue.
struct request {
	enum operation operation;
	bool signaled, solicited, with_immediate, with_invalidate;
	uint32_t immediate; // in network order; with_invalidate: the key, in this machine's order
	uint64_t remote;
	uint32_t remote_key;
	uint64_t compare, swap;
	uint32_t to_qp, to_key; // of a datagram
	uint32_t to_srq;        // of an extended connection
	bool elsewhere;         // the datagram's address leads out of this process
	struct binding binding; // of OP_BIND
	struct tag_operation tags; // of OP_TAGS
	int pieces;
	struct piece piece[PIECES];
	uint32_t inlined; // bytes in data
	uint8_t data[INLINE_BYTES];

	uint8_t opcode; // the adapter's own, its place and its size, which the completion repeats
	uint16_t index, blocks;
	uint8_t more_index[6]; // of efa, whose programs may number requests in 64 bits
};

struct receive {
	int pieces;
	struct piece piece[PIECES];
	uint16_t index;
	bool unsolicited; // there is none: a completion alone
};

enum status {
	OK, LOCAL_LENGTH, LOCAL_OPERATION, LOCAL_PROTECTION, FLUSHED, REMOTE_INVALID, REMOTE_ACCESS, REMOTE_OPERATION,
	RETRIES, RNR_RETRIES, LOCAL_ACCESS, WINDOW, NOBODY, STRANGER, AGAIN, DROPPED,
};

struct tagged {
	enum tag_kind kind;
	uint16_t place, unexpected; // unexpected messages until then
	bool done;                  // the tag to be removed was there
	const struct tag_header *header;
};

struct completion {
	struct qp *qp;
	enum status status;
	const struct request *request; // of the sender; at a receiver, what has come
	const struct receive *receive; // nil at the sender
	struct qp *from;
	uint32_t length;
	const uint8_t *inside; // the message, where the completion carries it, or NULL
	bool global; // it has a global route header
	const struct tagged *tagged; // at a shared receive queue that matches tags
};

// A command as INVOKE_WRITE brings it.
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
	uint32_t id, abi; // in netlink; an adapter without is found in sysfs alone
	const struct ib_uverbs_query_device_resp *device;
	const struct ib_uverbs_query_port_resp *port;
	const struct gid *gids;
	unsigned gid_count;
	uint32_t most_numbers; // of queue pairs: a mask
	uint32_t target;       // bit that the number of a receiver of extended connections has besides
	uint32_t datagram;     // the most bytes of one
	bool no_reset;         // its provider goes on counting where it was
	bool timestamps;       // completions have them, in nanoseconds
	bool scalable;         // datagrams alone, also reliable ones; and a queue pair goes on after requests that failed
	int (*get_context)(struct call *);
	int (*query_device)(struct call *);
	int (*alloc_pd)(struct call *, struct pd *);
	int (*create_ah)(struct call *, struct ah *);
	int (*create_cq)(struct call *, struct cq *);
	int (*resize_cq)(struct call *, struct cq *, uint32_t entries);
	int (*create_srq)(struct call *, struct srq *);
	int (*create_qp)(struct call *, struct qp *);
	void (*reset_qp)(struct qp *);
	void (*record_qp)(const struct qp *);
	int (*ioctl)(struct file *, struct ib_uverbs_ioctl_hdr *); // methods of its own

	void (*release)(struct object *);                   // what the driver has with an object that goes away
	bool (*knows)(struct pd *);                         // has a receiver an address for who sends?

	bool (*rung)(void);                                 // has a doorbell been rung since the last call?
	bool (*next_send)(struct qp *, struct request *);   // what is at the head of the queue
	bool (*next_receive)(struct qp *, struct receive *);
	void (*consume_receive)(struct qp *, const struct receive *);
	bool (*complete)(struct cq *, const struct completion *); // false: there is no room
	bool (*take_request)(struct cq *); // is an event asked for, and due? Each request is taken once
};

extern const struct driver mlx5, efa, mlx4, erdma, mana, irdma, bnxt_re, hns;
extern const struct driver *driver;

// uverbs.c
int uverbs_ioctl(struct file *, struct ib_uverbs_ioctl_hdr *);
int take(struct call *, void *, size_t);                    // what the command says
int answer(struct call *, const void *, size_t);            // cut to what the program has room for
int take_driver(struct call *, void *, size_t);
int answer_driver(struct call *, const void *, size_t);
int refuse(const char *what, uint64_t which);               // says on standard error what is not emulated: EOPNOTSUPP
struct ib_uverbs_attr *attribute(struct ib_uverbs_ioctl_hdr *, uint16_t);
bool give(struct ib_uverbs_ioctl_hdr *, uint16_t, const void *, size_t);

// objects.c
void *new_object(struct file *, enum kind, size_t);
void *find_object(struct file *, enum kind, uint32_t handle);
struct object *object_of(uint32_t handle); // of any file
void free_object(struct object *);
int destroy_object(struct object *); // which may be NULL
void free_objects(struct file *);
void each(enum kind, void (*)(void *));
bool infiniband(void); // the link, which is Ethernet otherwise
extern const uint8_t node_guid[8];
extern const struct command object_commands[];

// counts.c
void hold(enum kind, int more);

// gid.c
int query_gids(struct ib_uverbs_ioctl_hdr *);

// memory.c
bool mapped(uint64_t address);
uint8_t *look_up(struct qp *, uint64_t address, uint32_t length, uint32_t key, uint32_t access);
bool bind_window(struct qp *, const struct binding *);
bool invalidate(struct qp *, uint32_t key);
extern const struct command memory_commands[];

// record.c
bool recording(void);
void record_words(const char *what, const void *, size_t);
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
void forget_qp(struct qp *);
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
void drop(void *); // memory that another program may have got
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
