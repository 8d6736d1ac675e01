// SPDX-License-Identifier: BSD-2-Clause

// A program without the resources that the engine needs gets an errno and continues. Once the resources are available,
// it can open the device. Usage: limits CASE

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static struct ibv_context *open_first(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *context;

	CHECK(list && n > 0);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	return context;
}

static rlim_t limit(int resource, rlim_t to)
{
	struct rlimit now;
	rlim_t before;

	CHECK(!getrlimit(resource, &now));
	before = now.rlim_cur;
	now.rlim_cur = to;
	CHECK(!setrlimit(resource, &now));
	return before;
}

// refused makes calls that fail under a limit, with all error conventions.
static void refused(int resource, rlim_t to, int error)
{
	rlim_t before = limit(resource, to);
	struct ibv_device_attr attr;
	struct rdma_cm_id *id;
	int n;

	for (int i = 0; i < 3; i++) {
		errno = 0;
		CHECK(!ibv_get_device_list(&n) && errno == error);
		errno = 0;
		CHECK(!rdma_create_event_channel() && errno == error);
		errno = 0;
		CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == -1 && errno == error);
		CHECK(ibv_query_device(NULL, &attr) == error);
	}
	limit(resource, before);
	CHECK(open_first());
}

static void use_up(void)
{
	limit(RLIMIT_NOFILE, 100);
	while (open("/dev/null", O_RDONLY) >= 0)
		;
}

// Limits that are reached after the device was opened.
static void later(void)
{
	struct ibv_context *context = open_first();
	struct ibv_device **list;
	int n;

	CHECK(context && (list = ibv_get_device_list(&n)));
	rlim_t before = limit(RLIMIT_FSIZE, 0);

	errno = 0;
	CHECK(!ibv_open_device(list[0]) && errno == EFBIG);
	limit(RLIMIT_FSIZE, before);
	use_up();
	errno = 0;
	CHECK(!ibv_create_comp_channel(context) && errno == EMFILE);
	errno = 0;
	CHECK(!rdma_create_event_channel() && errno == EMFILE);
	CHECK(!close(99) && !close(98) && !close(97) && ibv_create_comp_channel(context));
}

// A program with few descriptors keeps its limit.
static void few(void)
{
	limit(RLIMIT_NOFILE, 34);
	CHECK(ibv_create_comp_channel(open_first()));
	CHECK(limit(RLIMIT_NOFILE, 34) == 34);
}

// A child that outlives its parent and never calls a verb.
static void stay(void)
{
	char b;

	if (!fork()) {
		close(1), close(2);
		while (read(0, &b, 1) > 0) // until the test ends
			;
	}
}

static void orphan(void)
{
	CHECK(open_first());
	stay();
}

static void full(void)
{
	CHECK(open_first());
	use_up();
	stay();
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	if (!strcmp(argv[1], "descriptors"))
		refused(RLIMIT_NOFILE, 12, EMFILE);
	else if (!strcmp(argv[1], "addresses"))
		refused(RLIMIT_AS, 500 << 20, ENOMEM);
	else if (!strcmp(argv[1], "data"))
		refused(RLIMIT_DATA, 50 << 20, ENOMEM);
	else if (!strcmp(argv[1], "files"))
		refused(RLIMIT_FSIZE, 0, EFBIG);
	else if (!strcmp(argv[1], "later"))
		later();
	else if (!strcmp(argv[1], "few"))
		few();
	else if (!strcmp(argv[1], "orphan"))
		orphan();
	else if (!strcmp(argv[1], "full"))
		full();
	else
		CHECK(open_first());
	return 0;
}
