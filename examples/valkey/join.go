// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"io"
	"net"
	"sync"
)

// join copies between two connections until one of them ends, and closes both.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			io.Copy(way[0], way[1])
			a.Close()
			b.Close()
		})
	}
	both.Wait()
}
