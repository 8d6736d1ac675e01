// A queue under a spinlock, like that of a provider, for the stress tests.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 1024

struct entry { uint64_t word[8]; };

struct queue {
	pthread_spinlock_t lock;
	uint64_t head, tail; /* entries consumed and posted in total */
	uint64_t inside; /* holder of the lock in a region */
	uint64_t regions, broken;
	struct entry slot[SLOTS];
};

struct queue *queue_new(void)
{
	struct queue *q = calloc(1, sizeof(*q));
	pthread_spin_init(&q->lock, PTHREAD_PROCESS_PRIVATE);
	return q;
}

/* post_send: copies one entry; bad is set when the queue is full */
int queue_post(struct queue *q, const struct entry *e, const struct entry **bad)
{
	int r = 0;
	pthread_spin_lock(&q->lock);
	if (q->tail - q->head == SLOTS) {
		*bad = e;
		r = ENOMEM;
	} else
		memcpy(&q->slot[q->tail++ % SLOTS], e, sizeof(*e));
	pthread_spin_unlock(&q->lock);
	return r;
}

/* poll_cq: takes up to n entries in the order they were put */
int queue_poll(struct queue *q, int n, struct entry *e)
{
	int i;
	pthread_spin_lock(&q->lock);
	for (i = 0; i < n && q->head < q->tail; i++)
		e[i] = q->slot[q->head++ % SLOTS];
	pthread_spin_unlock(&q->lock);
	return i;
}

/* wr_start, a setter and wr_complete: the lock is held in between */
void region_start(struct queue *q, uint64_t who)
{
	pthread_spin_lock(&q->lock);
	q->broken += q->inside != 0;
	q->inside = who;
}

void region_set(struct queue *q, uint64_t who)
{
	q->broken += q->inside != who;
}

int region_complete(struct queue *q, uint64_t who)
{
	q->broken += q->inside != who;
	q->inside = 0;
	q->regions++;
	pthread_spin_unlock(&q->lock);
	return 0;
}

uint64_t queue_regions(struct queue *q) { return q->regions; }
uint64_t queue_broken(struct queue *q) { return q->broken; }

/* overwrites the stack and the vector registers */
__attribute__((noinline)) uint64_t churn(uint64_t bytes)
{
	volatile uint64_t here[64];
	for (int i = 0; i < 64; i++)
		here[i] = bytes + i;
	return bytes <= 600 ? here[63] : churn(bytes - 600) + here[0];
}
