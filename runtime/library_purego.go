// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && (amd64 || arm64 || loong64 || ppc64le || riscv64) && !goverbs_static

package runtime

import (
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

const opensLibraries = true

// openLibrary resolves every symbol at once, because binding one later would happen on a small stack.
func openLibrary(file string) (uintptr, error) {
	return purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

// findSymbol returns 0 if there is no such symbol. If a symbol has versions, the loader finds the default one.
func findSymbol(handle uintptr, name string) uintptr {
	address, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return address
}

// errnoLocation is the address of the C library's function that returns the address of a thread's errno.
var errnoLocation = sync.OnceValue(func() uintptr { return findSymbol(purego.RTLD_DEFAULT, "__errno_location") })

// GNU reports whether the process uses the GNU C library. The generated layouts contain its types.
var GNU = sync.OnceValue(func() bool { return findSymbol(purego.RTLD_DEFAULT, "gnu_get_libc_version") != 0 })

// pathVariables are the environment variables by which rdma-core's libraries choose files to load, read or write.
// libibverbs compares user IDs before it loads drivers, which misses set-gid programs and file capabilities; the others
// are not protected.
var pathVariables = []string{"RDMAV_DRIVERS", "IBV_DRIVERS", "SYSFS_PATH", "VERBS_LOG_FILE", "MLX5_DEBUG_FILE"}

// unsetPaths removes pathVariables from the C library's environment, once.
var unsetPaths = sync.OnceFunc(func() {
	unset := findSymbol(purego.RTLD_DEFAULT, "unsetenv")
	if unset == 0 {
		return
	}
	for _, name := range pathVariables {
		c := append([]byte(name), 0)
		purego.SyscallN(unset, uintptr(unsafe.Pointer(&c[0])))
	}
})
