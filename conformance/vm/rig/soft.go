package rig

import (
	"os"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// Soft is the kernel's name where there is none: the tests run in any process, on a software device.
//
//	GOVERBS_GUEST=soft GOVERBS_DEVICE=soft0 GOVERBS_ADDRESS=127.0.0.1 GOVERBS_OUT=DIR go test ./conformance/vm/rxe
const Soft = "soft"

// Backend is what serves the device: nil is C's library.
func Backend() (runtime.Backend, error) {
	if os.Getenv(wire.EnvGuest) != Soft {
		return nil, nil
	}
	return soft.Default()
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
