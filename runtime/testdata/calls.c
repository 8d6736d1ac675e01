// Functions called by the tests of package runtime.
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <unistd.h>

// Each position has a different weight, so swapped or lost arguments change the result.
static uint64_t weigh(int n, const uint64_t *a)
{
	uint64_t sum = n;
	for (int i = 0; i < n; i++)
		sum = sum * 1000003 + a[i];
	return sum;
}

typedef uint64_t u;
u weigh0(void) { return weigh(0, 0); }
u weigh1(u a) { u x[] = {a}; return weigh(1, x); }
u weigh2(u a, u b) { u x[] = {a, b}; return weigh(2, x); }
u weigh3(u a, u b, u c) { u x[] = {a, b, c}; return weigh(3, x); }
u weigh4(u a, u b, u c, u d) { u x[] = {a, b, c, d}; return weigh(4, x); }
u weigh5(u a, u b, u c, u d, u e) { u x[] = {a, b, c, d, e}; return weigh(5, x); }
u weigh6(u a, u b, u c, u d, u e, u f) { u x[] = {a, b, c, d, e, f}; return weigh(6, x); }
u weigh7(u a, u b, u c, u d, u e, u f, u g) { u x[] = {a, b, c, d, e, f, g}; return weigh(7, x); }
u weigh8(u a, u b, u c, u d, u e, u f, u g, u h) { u x[] = {a, b, c, d, e, f, g, h}; return weigh(8, x); }
u weigh9(u a, u b, u c, u d, u e, u f, u g, u h, u i) { u x[] = {a, b, c, d, e, f, g, h, i}; return weigh(9, x); }

u weighvar(int n, ...)
{
	u x[8];
	va_list list;
	va_start(list, n);
	for (int i = 0; i < n; i++)
		x[i] = va_arg(list, u);
	va_end(list);
	return weigh(n, x);
}

// Results of C functions: with errno set, and with errno unchanged.
int give_int(int result, int error)
{
	if (error)
		errno = error;
	return result;
}

int64_t give_long(int64_t result, int error) { give_int(0, error); return result; }
void *give_pointer(void *result, int error) { give_int(0, error); return result; }
void put(int64_t *to, int64_t value) { *to = value; }

// An int is the low half of a register; the rest may hold anything.
uint64_t dirty(uint32_t low) { return 0xdeadbeef00000000 | low; }

int int3(int64_t a, int64_t b, int64_t c) { return a + 10 * b + 100 * c; }

// The registers that C preserves for its caller, and vector registers, which it does not preserve.
double busy(int64_t a, int64_t b, int64_t c)
{
	double x[8];
	for (int i = 0; i < 8; i++)
		x[i] = a * i + b * 0.5 + c;
	double sum = 0;
	for (int i = 0; i < 8; i++)
		sum += x[i] * x[7 - i];
	return sum;
}

__attribute__((noinline)) int deep(int64_t bytes)
{
	volatile char here[464];
	here[0] = 1;
	if (bytes <= 512)
		return here[0];
	return deep(bytes - 512) + here[0];
}

int nap(int64_t ms) { return usleep(1000 * ms); }

int aligned(void)
{
	_Alignas(16) volatile char here[16];
	return (int)((uintptr_t)here % 16 + (uintptr_t)__builtin_frame_address(0) % 16);
}

int dereference(const volatile int *p) { return *p; }
