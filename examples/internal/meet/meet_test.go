// SPDX-License-Identifier: BSD-2-Clause

package meet

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestSoftDeviceIsOneProcess: two processes that met on soft0 would wait for each other in vain.
func TestSoftDeviceIsOneProcess(t *testing.T) {
	never := func(net.Conn, bool, bool) error { t.Error("they met"); return nil }
	for _, o := range []Options{{Device: "soft0", listen: true}, {Device: "soft1", host: "127.0.0.1", port: 1}} {
		assert.ErrorContains(t, o.Run(never), o.Device+" is a software device inside this process")
	}
}

// TestDeviceBeforePeer: a device that is not there is an error before another end comes.
func TestDeviceBeforePeer(t *testing.T) {
	never := func(net.Conn, bool, bool) error { t.Error("they met"); return nil }
	for _, o := range []Options{{Device: "soft@192.0.2.77", listen: true}, {Device: "nonesuch", listen: true},
		{Device: "soft@192.0.2.77", host: "127.0.0.1", port: 1}} {
		ended := make(chan error, 1)
		go func() { ended <- o.Run(never) }()
		select {
		case err := <-ended:
			assert.ErrorContains(t, err, strings.TrimPrefix(o.Device, "soft@"))
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it waits for another end", o.Device)
		}
	}
}
