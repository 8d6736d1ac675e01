/* A send queue and its completion queue under a spinlock, like those of a provider. It parses requests and counts those that differ from
 * what the worker writes. Structures are declared only as far as the functions use them. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 1024

enum { RDMA_WRITE = 0, SIGNALED = 2, WC_RDMA_WRITE = 1, QP_NUM = 0x12 };

struct done { uint64_t id; int signalled; };

struct device {
	pthread_spinlock_t lock;
	uint32_t capacity, head, tail; /* requests completed and consumed in total */
	uint32_t pending;              /* requests of an open region, after tail */
	uint64_t inside;               /* open regions: 0 or 1 */
	uint64_t taken, refused, wrong;
	struct done slot[SLOTS], polled;
};

struct sge { uint64_t addr; uint32_t length, lkey; };

struct send_wr {
	uint64_t id;
	struct send_wr *next;
	struct sge *sges;
	int32_t sge_count;
	uint32_t opcode, flags, imm;
	uint64_t remote;
	uint32_t rkey;
};

struct wc { uint64_t id; uint32_t status, opcode, vendor_err, byte_len, imm, qp_num, rest[4]; };

struct qp { void *context; struct device *device; };
struct cq { void *context, *channel; struct device *device; };

/* offsets of members beyond the structures above, set by the worker */
static struct { uint32_t qp_wr_id, qp_wr_flags, cq_wr_id, cq_status; } at;

#define MEMBER(type, object, offset) (*(type *)((char *)(object) + (offset)))

void device_members(uint32_t qp_wr_id, uint32_t qp_wr_flags, uint32_t cq_wr_id, uint32_t cq_status)
{
	at.qp_wr_id = qp_wr_id, at.qp_wr_flags = qp_wr_flags, at.cq_wr_id = cq_wr_id, at.cq_status = cq_status;
}

struct device *device_new(uint32_t capacity)
{
	struct device *d = calloc(1, sizeof(*d));
	d->capacity = capacity;
	pthread_spin_init(&d->lock, PTHREAD_PROCESS_PRIVATE);
	return d;
}

uint64_t device_taken(struct device *d) { return d->taken; }
uint64_t device_refused(struct device *d) { return d->refused; }
uint64_t device_wrong(struct device *d) { return d->wrong; }

/* fields of a request, by ID */
static uint64_t local_of(uint64_t id) { return id * 0x9e3779b97f4a7c15; }
static uint64_t remote_of(uint64_t id) { return ~local_of(id); }

static int full(struct device *d) { return d->tail + d->pending - d->head == d->capacity; }

static void take(struct device *d, uint64_t id, uint32_t flags)
{
	d->slot[(d->tail + d->pending++) % SLOTS] = (struct done){id, flags & SIGNALED};
	d->taken++;
}

static void commit(struct device *d)
{
	d->tail += d->pending;
	d->pending = 0;
}

int device_post_send(struct qp *qp, struct send_wr *wr, struct send_wr **bad)
{
	struct device *d = qp->device;
	int r = 0;
	pthread_spin_lock(&d->lock);
	for (; wr; wr = wr->next) {
		if (full(d)) {
			d->refused++;
			*bad = wr;
			r = ENOMEM;
			break;
		}
		d->wrong += wr->opcode != RDMA_WRITE || wr->sge_count != 1 || wr->sges->addr != local_of(wr->id) || wr->sges->length != 8 ||
			wr->remote != remote_of(wr->id) || wr->rkey != 7;
		take(d, wr->id, wr->flags);
	}
	commit(d);
	pthread_spin_unlock(&d->lock);
	return r;
}

/* the next signaled request that completed; earlier ones are complete, too */
static int next(struct device *d)
{
	while (d->head != d->tail) {
		d->polled = d->slot[d->head++ % SLOTS];
		if (d->polled.signalled)
			return 1;
	}
	return 0;
}

int device_poll_cq(struct cq *cq, int n, struct wc *wc)
{
	struct device *d = cq->device;
	int i;
	pthread_spin_lock(&d->lock);
	for (i = 0; i < n && next(d); i++)
		wc[i] = (struct wc){.id = d->polled.id, .opcode = WC_RDMA_WRITE, .qp_num = QP_NUM};
	pthread_spin_unlock(&d->lock);
	return i;
}

/* wr_start to wr_complete: the lock is held in between */
void device_wr_start(struct qp *qp)
{
	pthread_spin_lock(&qp->device->lock);
	qp->device->wrong += qp->device->inside++ != 0;
}

void device_wr_rdma_write(struct qp *qp, uint32_t rkey, uint64_t remote)
{
	struct device *d = qp->device;
	uint64_t id = MEMBER(uint64_t, qp, at.qp_wr_id);
	d->wrong += d->inside != 1 || remote != remote_of(id) || rkey != 7;
	if (full(d))
		d->refused++;
	else
		take(d, id, MEMBER(uint32_t, qp, at.qp_wr_flags));
}

void device_wr_set_sge(struct qp *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct device *d = qp->device;
	d->wrong += d->inside != 1 || addr != local_of(MEMBER(uint64_t, qp, at.qp_wr_id)) || length != 8;
}

int device_wr_complete(struct qp *qp)
{
	struct device *d = qp->device;
	commit(d);
	d->wrong += --d->inside != 0;
	pthread_spin_unlock(&d->lock);
	return 0;
}

/* start_poll to end_poll: the lock is held in between, but when nothing has completed */
static int found(struct cq *cq)
{
	struct device *d = cq->device;
	if (!next(d))
		return ENOENT;
	MEMBER(uint64_t, cq, at.cq_wr_id) = d->polled.id;
	MEMBER(uint32_t, cq, at.cq_status) = 0;
	return 0;
}

int device_start_poll(struct cq *cq, void *attr)
{
	int r;
	pthread_spin_lock(&cq->device->lock);
	cq->device->wrong += cq->device->inside++ != 0;
	r = found(cq);
	if (r) {
		cq->device->inside--;
		pthread_spin_unlock(&cq->device->lock);
	}
	return r;
}

int device_next_poll(struct cq *cq) { return found(cq); }

void device_end_poll(struct cq *cq)
{
	cq->device->wrong += --cq->device->inside != 0;
	pthread_spin_unlock(&cq->device->lock);
}

uint32_t device_read_opcode(struct cq *cq) { return WC_RDMA_WRITE; }
uint32_t device_read_qp_num(struct cq *cq) { return QP_NUM; }
uint32_t device_read_nothing(struct cq *cq) { return 0; }
