// SPDX-License-Identifier: BSD-2-Clause

package meet

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestSoftDeviceIsOneProcess: two processes that met on soft0 would wait for each other in vain.
func TestSoftDeviceIsOneProcess(t *testing.T) {
	never := func(net.Conn, bool, bool) error { t.Error("they met"); return nil }
	for _, o := range []Options{{Device: "soft0", listen: true}, {Device: "soft1", host: "127.0.0.1", port: 1}} {
		assert.ErrorContains(t, o.Run(never), o.Device+" is a software device inside this process")
	}
}
