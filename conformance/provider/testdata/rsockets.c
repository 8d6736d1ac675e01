// SPDX-License-Identifier: BSD-2-Clause

// Both ends of an rsockets connection in one process: transfers megabytes in both directions through the connection
// manager's device file and the adapter's queues, with one thread for each end. With separate reading and writing
// threads, one may sleep forever: before it waits for an event it releases the queue's lock, and the other one polls
// the completion it waits for, and arms the queue again. That happened in every fifth run, with all completions polled.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rsocket.h>

enum { SIZE = 3 << 20, PIECE = 48000 };

static unsigned char at(size_t i) { return i * 2654435761u >> 24; }

static unsigned char piece[PIECE];

static void must(const char *what, long r)
{
	if (r < 0) {
		perror(what);
		exit(1);
	}
}

static void *answer(void *listener)
{
	static char heard[PIECE];
	int s = raccept(*(int *)listener, NULL, NULL);
	must("raccept", s);
	for (;;) {
		ssize_t n = rrecv(s, heard, sizeof heard, 0);
		must("rrecv", n);
		for (ssize_t sent = 0, k; sent < n; sent += k)
			must("rsend", k = rsend(s, heard + sent, n - sent, 0));
		if (n == 0)
			break;
	}
	must("rclose", rclose(s));
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7471)};
	if (argc != 2 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), s = rsocket(AF_INET, SOCK_STREAM, 0);
	must("rbind", rbind(listener, (struct sockaddr *)&to, sizeof to));
	must("rlisten", rlisten(listener, 1));
	pthread_t other;
	pthread_create(&other, NULL, answer, &listener);
	must("rconnect", rconnect(s, (struct sockaddr *)&to, sizeof to));
	for (size_t done = 0; done < SIZE; done += PIECE) {
		for (size_t i = 0; i < PIECE; i++)
			piece[i] = at(done + i);
		for (size_t sent = 0; sent < PIECE;) {
			ssize_t n = rsend(s, piece + sent, PIECE - sent, 0);
			must("rsend", n);
			sent += n;
		}
		memset(piece, 0, PIECE);
		for (size_t got = 0; got < PIECE;) {
			ssize_t n = rrecv(s, piece + got, PIECE - got, 0);
			must("rrecv", n ? n : -1);
			got += n;
		}
		for (size_t i = 0; i < PIECE; i++)
			if (piece[i] != at(done + i))
				return fprintf(stderr, "byte %zu differs\n", done + i), 1;
	}
	must("rclose", rclose(s));
	pthread_join(other, NULL);
	must("rclose", rclose(listener));
	puts("there and back: fine");
	return 0;
}
