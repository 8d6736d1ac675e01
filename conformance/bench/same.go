// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// sameBytes returns an error if an implementation posts other bytes than C, the first implementation. It runs each post
// case of each implementation on a stub that captures the posted work requests.
func sameBytes(s *stub) error {
	for _, name := range []string{caseCall, caseBuild, casePatch} {
		for _, batch := range []int{1, 4, 16, 64} {
			c := cell{stub: stubCapture, qps: 1, goroutines: 1, name: name, batch: batch}
			var want []byte
			for _, impl := range implementations {
				sample, err := impl.prepare(c, s)
				if err != nil {
					return fmt.Errorf("%s: %v: %w", impl.name, c, err)
				}
				if _, err := sample(3); err != nil {
					return fmt.Errorf("%s: %v: %w", impl.name, c, err)
				}
				got := captured()
				if impl.name == implC {
					want = got
				}
				if !bytes.Equal(got, want) {
					return fmt.Errorf("%s and C post different bytes: %v: %s", impl.name, c,
						firstDifference(got, want))
				}
			}
		}
	}
	return nil
}

func firstDifference(got, want []byte) string {
	const header, wr = 8, int(unsafe.Sizeof(ibv.SendWR{}))
	for i := range got {
		switch at := i - header; {
		case got[i] == want[i]:
			continue
		case at < 0:
			return fmt.Sprintf("%d work requests, not %d", got[0], want[0])
		case at < depth*wr:
			return fmt.Sprintf("byte %d of work request %d is %#x, not %#x", at%wr, at/wr, got[i], want[i])
		default:
			return fmt.Sprintf("byte %d of SGEs is %#x, not %#x", at-depth*wr, got[i], want[i])
		}
	}
	return "no difference"
}
