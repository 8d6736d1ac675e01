// SPDX-License-Identifier: BSD-2-Clause

// Changes the working directory, then lists devices.

#include <infiniband/verbs.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int n = -1;

	if (argc != 2 || chdir(argv[1]) || !ibv_get_device_list(&n))
		return 1;
	printf("%d\n", n);
	return 0;
}
