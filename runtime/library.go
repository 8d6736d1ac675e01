// SPDX-License-Identifier: BSD-2-Clause

package runtime

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/internal/rights"
)

// Library is a shared library. The first lookup of a symbol opens it, and it stays open.
type Library struct {
	Name    string // "libibverbs"
	SOName  string // "libibverbs.so.1", which the system's loader looks for unless a path is set
	Project string // the library's project: "rdma-core"
	// Check may reject an opened library; it may be nil. Its argument is open, so Check can look up symbols.
	Check func(*Library) error
	// Needs is a library that this one is linked with, or nil. It is opened first, so that both use the same file of
	// it, even if a path selects another file than the loader would find.
	Needs *Library

	mu     sync.Mutex
	path   string
	handle uintptr
	err    error
	tried  bool
}

// OpensLibraries reports whether this build can open C libraries and call their functions: builds for Linux on amd64,
// arm64, loong64, ppc64le and riscv64, without the build tag goverbs_static.
const OpensLibraries = opensLibraries

// SetPath sets the file to open instead of the one that the system's loader would find. Call it before the first call
// of a function of the library or of a library that needs it; later it returns an error. The environment variable
// GOVERBS_LIBIBVERBS, or the same with another Name, has the same effect; SetPath takes precedence.
//
// A program with elevated privileges (set-uid, set-gid or file capabilities: AT_SECURE of getauxval) ignores the
// variable, because it would run its user's code with these privileges. Such a program may call SetPath with a path
// that its user can neither choose nor write to. The variables by which rdma-core loads drivers and opens files are
// removed from its C environment before a library is opened.
func (l *Library) SetPath(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle != 0 {
		return fmt.Errorf("goverbs: %s: the library is already open (%s); set its path before the first call", l.Name,
			l.file())
	}
	l.path, l.err, l.tried = path, nil, false
	return nil
}

// pathVariable returns the name of the environment variable with the library's path: GOVERBS_LIBIBVERBS.
func (l *Library) pathVariable() string { return "GOVERBS_" + strings.ToUpper(l.Name) }

// projectSuffix returns the library's project in parentheses.
func (l *Library) projectSuffix() string {
	if l.Project == "" {
		return ""
	}
	return " (" + l.Project + ")"
}

// file returns the file to open.
func (l *Library) file() string {
	if l.path != "" {
		return l.path
	}
	if path := rights.Getenv(l.pathVariable()); path != "" {
		return path
	}
	return l.SOName
}

// Open opens the library. It is optional: the first call of a function does the same. The error is a
// *NotSupportedError.
func (l *Library) Open() error {
	_, err := l.open()
	return err
}

func (l *Library) open() (uintptr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tried {
		return l.handle, l.err
	}
	l.tried = true
	if rights.More() {
		unsetPaths()
	}
	if l.Needs != nil {
		l.Needs.Open() // its own functions report why it cannot be opened
	}
	handle, err := openLibrary(l.file())
	if err != nil {
		missing := l.file() + " cannot be opened"
		switch {
		case opensLibraries && rights.More():
			missing += fmt.Sprintf("; install it%s; the program runs with more rights than its user, so %s "+
				"is ignored", l.projectSuffix(), l.pathVariable())
		case opensLibraries:
			missing += fmt.Sprintf("; install it%s, or name its file in %s", l.projectSuffix(), l.pathVariable())
		}
		l.err = &NotSupportedError{Missing: missing, Err: err}
		return 0, l.err
	}
	l.handle = handle
	if l.Check != nil {
		// a copy, because this one is locked
		if err := l.Check(&Library{Name: l.Name, SOName: l.SOName, path: l.path, handle: handle,
			tried: true}); err != nil {
			l.handle, l.err = 0, &NotSupportedError{Missing: l.file() + " cannot be used", Err: err}
		}
	}
	return l.handle, l.err
}

// Symbol returns the address of the default version of a symbol, or 0 if the library has no such symbol.
func (l *Library) Symbol(name string) (uintptr, error) {
	handle, err := l.open()
	if err != nil {
		return 0, err
	}
	return findSymbol(handle, name), nil
}

// Function is a C function that a header declares: exported by a library, or in a slot of an object. Its methods select
// the code to call, and return a [Call]. All calls may block. An argument that is the address of Go memory stays valid
// during the call if it is converted to uintptr in the call's own parentheses.
type Function struct {
	Library *Library
	Name    string // "ibv_create_qp"
	Since   string // the first pinned release that has it, or "" if all have it
	// Pointers has bit i set if argument i is an address. The first such argument in the Space of a software backend
	// routes the call to that backend.
	Pointers uint8
	// With is set for a slot that objects of older libraries lack. It names a function that the library exports since
	// the same release; without it, the slot's place holds something else.
	With string

	address atomic.Uintptr // of the symbol, or of With, after it was found
	again   atomic.Pointer[CallError]
	code    atomic.Pointer[failure]
}

// Available returns nil if the library exports the function, and the reason otherwise. It does not check whether a
// device supports it.
func (f *Function) Available() error {
	_, err := f.find()
	return err
}

// Has returns nil if an object of the library has the slot whose content is address, and the reason otherwise. It is
// always nil for an address in the Space of a software backend.
func (f *Function) Has(slot uintptr) error {
	switch {
	case slot == 0:
		return f.missing("the device's provider does not have it", nil)
	case f.With == "" || f.address.Load() != 0 || inSpace(slot):
		return nil
	}
	address, err := f.Library.Symbol(f.With)
	if err == nil && address == 0 {
		err = f.missing("objects of "+f.Library.file()+" do not have the slot", nil)
	}
	f.address.Store(address)
	return err
}

// find returns the address of the exported function.
func (f *Function) find() (uintptr, error) {
	if address := f.address.Load(); address != 0 {
		return address, nil
	}
	address, err := f.Library.Symbol(f.Name)
	if err != nil {
		missing := err.(*NotSupportedError)
		return 0, f.missing(missing.Missing, missing.Err)
	}
	if address == 0 {
		return 0, f.missing(f.Library.file()+" does not export it", nil)
	}
	f.address.Store(address)
	return address, nil
}

// missing returns the error for a function that cannot be called.
func (f *Function) missing(what string, cause error) error {
	return &NotSupportedError{Function: f.Name, Missing: what, Project: f.Library.Project, Since: f.Since, Err: cause}
}

// Nil returns the error for an argument that must not be nil.
func (f *Function) Nil(argument string) error {
	return &NilError{Function: f.Name, Argument: argument}
}
