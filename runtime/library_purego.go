//go:build linux && !android && (amd64 || arm64 || loong64 || ppc64le || riscv64)

package runtime

import (
	"sync"

	"github.com/ebitengine/purego"
)

const opensLibraries = true

// openLibrary resolves every symbol at once: binding them later would happen on a small stack.
func openLibrary(file string) (uintptr, error) {
	return purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

// findSymbol is 0 when there is none. Of a symbol with versions the loader gives the default one.
func findSymbol(handle uintptr, name string) uintptr {
	address, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return address
}

// errnoLocation is the address of the C library's function that says where a thread's errno is.
var errnoLocation = sync.OnceValue(func() uintptr { return findSymbol(purego.RTLD_DEFAULT, "__errno_location") })

// GNU reports whether the process runs with the GNU C library, whose types the generated layouts have.
var GNU = sync.OnceValue(func() bool { return findSymbol(purego.RTLD_DEFAULT, "gnu_get_libc_version") != 0 })
