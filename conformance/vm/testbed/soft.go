// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// Soft is the kernel name for tests that run outside a guest, on a software device. Measurements are written to the
// directory GOVERBS_OUT, if set.
const Soft = "soft"

// OrSoft selects the software device for tests outside a guest.
func OrSoft() {
	if os.Getenv(wire.EnvGuest) != "" {
		return
	}
	for name, value := range map[string]string{wire.EnvGuest: Soft, wire.EnvDevice: "soft0",
		wire.EnvAddress: "127.0.0.1"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
}

// Backend returns the backend of the device: nil for the C library. GOVERBS_NATIVE=1 selects package native.
func Backend() (runtime.Backend, error) {
	switch {
	case os.Getenv(wire.EnvGuest) == Soft:
		return soft.Default()
	case Native():
		return native.Open()
	}
	return nil, nil
}

// Native reports whether tests use the guest's device without rdma-core.
func Native() bool { return os.Getenv("GOVERBS_NATIVE") == "1" }

// DeviceName returns the name of the device for rdma.Open.
func DeviceName() string {
	name := os.Getenv(wire.EnvDevice)
	if Native() {
		return native.Prefix + name
	}
	return name
}

// Lossy reports whether the software device loses packets and has a virtual clock; see conformance/vm/soft.sh.
func Lossy() bool { return strings.HasPrefix(os.Getenv("GOVERBS_SOFT_WIRE"), "lossy") }

// Immediate skips a test, or a part of one, that asserts real time or the arrival time of a message. A lossy wire with
// a virtual clock guarantees neither.
func Immediate(t testing.TB, reason string) {
	t.Helper()
	if Lossy() {
		t.Skip("a lossy wire with a virtual clock: " + reason)
	}
}

// Elapse advances the virtual clock of a lossy wire. Without Elapse, only polling advances it.
func Elapse(d time.Duration) error {
	if !Lossy() {
		return nil
	}
	f, err := soft.Default()
	if err == nil {
		f.Advance(d)
	}
	return err
}

// softResources counts the objects of the software fabric.
func softResources() (map[string]uint64, error) {
	f, err := soft.Default()
	if err != nil {
		return nil, err
	}
	counts := map[string]uint64{"pd": 0, "cq": 0, "qp": 0, "mr": 0, "ctx": 0, "srq": 0}
	for kind, n := range f.Resources() {
		counts[kind] = uint64(n)
	}
	return counts, nil
}
