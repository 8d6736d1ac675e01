// SPDX-License-Identifier: BSD-2-Clause

package registration_test

import (
	"fmt"
	"log"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/registration"
)

// A program sends from memory that its callers provide. The cache registers the memory when it is first used.
func ExampleCache() {
	device, err := rdma.Open("soft0")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	pd, err := device.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	cache, err := registration.NewCache(pd, registration.Options{Bytes: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	memory := make([]byte, 1<<20)
	for _, message := range [][]byte{memory, memory[4096:8192], memory[100:200]} {
		lease, err := cache.Get(message, ibv.ACCESS_LOCAL_WRITE)
		if err != nil {
			log.Fatal(err)
		}
		entry := lease.SGE(0, uint32(len(message)))
		fmt.Println("send", entry.Length, "bytes") // post it, and wait for its completion
		lease.Release()
	}
	s := cache.Stats()
	fmt.Println(s.Misses, "registration,", s.Hits, "hits")
	// Output:
	// send 1048576 bytes
	// send 4096 bytes
	// send 100 bytes
	// 1 registration, 2 hits
}
