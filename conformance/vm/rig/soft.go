// SPDX-License-Identifier: BSD-2-Clause

package rig

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

// Soft is the kernel's name where there is none: the tests run in any process, on a software device. What they measure
// goes to the directory GOVERBS_OUT, if it is set.
const Soft = "soft"

// OrSoft has tests that do not run in a guest run on the software device.
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

// Backend returns the backend of the device; nil is C's library. GOVERBS_NATIVE=1 selects package native.
func Backend() (runtime.Backend, error) {
	switch {
	case os.Getenv(wire.EnvGuest) == Soft:
		return soft.Default()
	case os.Getenv("GOVERBS_NATIVE") == "1":
		return native.Open()
	}
	return nil, nil
}

// Lossy says whether the software device loses packets, with a virtual clock: see conformance/vm/soft.sh.
func Lossy() bool { return strings.HasPrefix(os.Getenv("GOVERBS_SOFT_WIRE"), "lossy") }

// Immediate skips a test, or a part of one, that asserts times of the clock or when a message arrives, which a lossy
// wire with a virtual clock leaves open.
func Immediate(t testing.TB, why string) {
	t.Helper()
	if Lossy() {
		t.Skip("a lossy wire with a virtual clock: " + why)
	}
}

// Elapse lets the time of a lossy wire go on. Otherwise polls do.
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

// softResources counts what is held of the software fabric.
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
