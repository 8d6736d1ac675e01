// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"fmt"
	"net/http"
	"testing"
)

// BenchmarkProtocols compares both protocols with HTTP over loopback, on software devices in one process.
func BenchmarkProtocols(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		data := bytesOf(size, 1)
		for _, variant := range []string{"http", "hipobj-rc-v2", "direct"} {
			threshold := 1
			if variant == "http" {
				threshold = maxSize
			}
			for _, method := range []string{http.MethodPut, http.MethodGet} {
				b.Run(fmt.Sprintf("%s/%dKiB/%s", method, size>>10, variant), func(b *testing.B) {
					direct := variant == "direct"
					p := newPair(b, HandlerOptions{Direct: direct}, Options{Direct: direct, Threshold: threshold}, nil)
					if variant == "http" {
						p.client.Transport = p.transport.base // a GET by RDMA first sends a HEAD for the size
					}
					p.put("key", data)
					b.SetBytes(int64(size))
					for b.Loop() {
						if method == http.MethodPut {
							p.put("key", data)
						} else {
							p.get("key")
						}
					}
				})
			}
		}
	}
}
