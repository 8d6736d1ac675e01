// SPDX-License-Identifier: BSD-2-Clause

package meet

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestSoftDeviceIsOneProcess checks that soft0 is rejected for two processes, which cannot reach each other through it.
func TestSoftDeviceIsOneProcess(t *testing.T) {
	never := func(net.Conn, bool, bool) error { t.Error("the ends connected"); return nil }
	for _, o := range []Options{{Device: "soft0", listen: true}, {Device: "soft1", host: "127.0.0.1", port: 1}} {
		assert.ErrorContains(t, o.Run(never), o.Device+" is a software device inside this process")
	}
}

// TestDeviceBeforePeer checks that a missing device is reported before the other end connects.
func TestDeviceBeforePeer(t *testing.T) {
	never := func(net.Conn, bool, bool) error { t.Error("the ends connected"); return nil }
	for _, o := range []Options{{Device: "soft@192.0.2.77", listen: true}, {Device: "nonesuch", listen: true},
		{Device: "soft@192.0.2.77", host: "127.0.0.1", port: 1}} {
		done := make(chan error, 1)
		go func() { done <- o.Run(never) }()
		select {
		case err := <-done:
			assert.ErrorContains(t, err, strings.TrimPrefix(o.Device, "soft@"))
		case <-time.After(10 * time.Second):
			t.Errorf("%s: Run waits for the other end", o.Device)
		}
	}
}
