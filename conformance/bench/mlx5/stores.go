// SPDX-License-Identifier: BSD-2-Clause

package main

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#include <stdint.h>

#if defined(__x86_64__)
#define FENCE() __asm__ volatile("sfence" ::: "memory")
#elif defined(__aarch64__)
#define FENCE() __asm__ volatile("dsb st" ::: "memory")
#endif

// stores executes only the stores that every post of a write needs: 48 bytes of a request, its number in the doorbell
// record, the request's block in the register, and two fences.
static void stores(uint64_t *ring, unsigned blocks, volatile uint32_t *record, volatile uint64_t *reg, int n)
{
	for (int i = 0; i < n; i++) {
		volatile uint64_t *block = ring + i % blocks * 8;
		volatile uint64_t *to = reg + i % 2 * 32;

		for (int word = 0; word < 6; word++)
			block[word] = i + word;
		*record = i;
		FENCE();
		for (int word = 0; word < 8; word++)
			to[word] = block[word];
		FENCE();
	}
}
*/
import "C"

import (
	"slices"
	"time"
)

// storesAlone measures the minimum time for posting one request: the stores and fences that the device requires. Any
// other cost of a post is software overhead.
func storesAlone() figure {
	const blockWords, registerWords = 8, 64
	ring, register, record := make([]C.uint64_t, depth*blockWords), make([]C.uint64_t, registerWords), new(C.uint32_t)
	ns := make([]float64, samples)
	for i := range ns {
		start := time.Now()
		C.stores(&ring[0], depth, record, &register[0], depth)
		ns[i] = float64(time.Since(start)) / depth
	}
	slices.Sort(ns)
	return figure{ns[0], ns[samples/2]}
}
