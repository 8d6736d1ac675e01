// SPDX-License-Identifier: BSD-2-Clause

// Package vm runs test programs on a real kernel: it boots a Debian kernel with Soft-RoCE under QEMU's software
// emulation, with an initial file system that holds the programs, the shared libraries that they need, rdma-core's
// provider and nothing else, and tells how that ended.
//
//	image, err := vm.Prepare(ctx, "6.1", vm.CacheDir(), log) // kernel, modules and libraries of Debian
//	programs, cleanup, err := vm.Build(ctx, []string{"./rdma/..."}, …)
//	outcome, err := (&vm.Guest{Image: image, Programs: programs}).Run(ctx)
//
// The guest is amd64 everywhere. Needed on the host: qemu-system-x86_64 always; apt and dpkg-deb until the image is in
// the cache.
package vm

// Logf receives a line about each step that takes time. A nil Logf is silent.
type Logf func(format string, args ...any)

func (l Logf) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}
