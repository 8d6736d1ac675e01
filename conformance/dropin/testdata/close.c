// SPDX-License-Identifier: BSD-2-Clause

// Opens libibverbs with dlopen and closes it.

#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	for (int i = 0; i < 3; i++) {
		void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
		int n = 0, status = 0;
		void *(*list)(int *) = library ? (void *(*)(int *))dlsym(library, "ibv_get_device_list") : NULL;

		if (!list || !list(&n) || n != 1 || dlclose(library)) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		if (fork() == 0)
			_exit(0);
		if (wait(&status) < 0 || status)
			return 1;
	}
	puts("close: fine");
	return 0;
}
