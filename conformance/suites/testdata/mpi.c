// SPDX-License-Identifier: BSD-2-Clause

// Exchanges messages between ranks 0 and 1, and sums over all ranks, with sizes from 1 byte to 1 MiB, and checks every
// byte. Usage: mpirun -np N mpi
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { largest = 1 << 20, rounds = 20 };

static void want(int holds, const char *what, int size)
{
	if (!holds) {
		fprintf(stderr, "%s of %d bytes: wrong data\n", what, size);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

// pingpong sends a message from rank 0 to rank 1 and back.
static void pingpong(int rank, int size, unsigned char *data)
{
	for (int round = 0; round < rounds; round++) {
		if (rank == 0) {
			memset(data, round + size, size);
			MPI_Send(data, size, MPI_BYTE, 1, round, MPI_COMM_WORLD);
			memset(data, 0, size);
			MPI_Recv(data, size, MPI_BYTE, 1, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else if (rank == 1) {
			MPI_Recv(data, size, MPI_BYTE, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(data, size, MPI_BYTE, 0, round, MPI_COMM_WORLD);
		}
		for (int i = 0; i < size && rank < 2; i++)
			want(data[i] == (unsigned char)(round + size), "a message", size);
	}
}

// sum adds numbers of all ranks.
static void sum(int rank, int ranks, int n, int *mine, int *all)
{
	for (int i = 0; i < n; i++)
		mine[i] = i * (rank + 1);
	MPI_Allreduce(mine, all, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		want(all[i] == i * (ranks * (ranks + 1) / 2), "a sum", n * (int)sizeof(int));
}

int main(int argc, char **argv)
{
	int rank, ranks;
	void *a = malloc(largest), *b = malloc(largest);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int size = 1; size <= largest; size *= 4) {
		pingpong(rank, size, a);
		sum(rank, ranks, size / (int)sizeof(int), a, b);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks: fine\n", ranks);
	MPI_Finalize();
	return 0;
}
