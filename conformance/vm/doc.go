// SPDX-License-Identifier: BSD-2-Clause

// Package vm runs test programs on a real kernel. It boots a Debian kernel with Soft-RoCE, or Soft-iWARP built from its
// source, under QEMU's software emulation, with an initramfs that contains only the programs, the shared libraries that
// they need and rdma-core's provider, and reports the outcome.
//
//	image, err := vm.Prepare(ctx, "6.1", vm.CacheDir(), log) // kernel, modules and libraries of Debian
//	programs, cleanup, err := vm.Build(ctx, []string{"./rdma/..."}, …)
//	outcome, err := (&vm.Guest{Image: image, Programs: programs}).Run(ctx)
//
// The guest is always amd64. The host needs qemu-system-x86_64, and apt and dpkg-deb until the image is in the cache.
package vm

// Logf receives a line about each slow step. A nil Logf discards it.
type Logf func(format string, args ...any)

func (l Logf) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}
