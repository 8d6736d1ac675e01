package runtime

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// Library is a shared library, opened when its first symbol is wanted. It stays open.
type Library struct {
	Name   string // "libibverbs"
	SOName string // "libibverbs.so.1", which the system's loader looks for unless a path is given
	// Check refuses a library after it was opened, or is nil. What it gets is open and answers for its symbols.
	Check func(*Library) error
	// Needs is opened before, or nil: a library that this one is linked with. The system's loader then gives it that very file, also
	// when a path says another one than the loader would find, and both work on the same objects.
	Needs *Library

	mu     sync.Mutex
	path   string
	handle uintptr
	err    error
	tried  bool
}

// SetPath says which file to open instead of asking the system's loader. It comes before the first call, also of libraries that need this
// one; later it is an error.
// The environment variable PathVariable says the same, and a path set here wins.
func (l *Library) SetPath(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle != 0 {
		return fmt.Errorf("goverbs: %s: the library is open already (%s): its path has to be set before the first call", l.Name, l.file())
	}
	l.path, l.err, l.tried = path, nil, false
	return nil
}

// PathVariable is the environment variable with the library's path: GOVERBS_LIBIBVERBS.
func (l *Library) PathVariable() string { return "GOVERBS_" + strings.ToUpper(l.Name) }

// file is what is opened.
func (l *Library) file() string {
	if l.path != "" {
		return l.path
	}
	if path := os.Getenv(l.PathVariable()); path != "" {
		return path
	}
	return l.SOName
}

// Open opens the library. Nobody has to call it: the first call of a function does. The error is a *NotSupportedError.
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
	if l.Needs != nil {
		l.Needs.Open() // its own functions tell why it cannot be opened
	}
	handle, err := openLibrary(l.file())
	if err != nil {
		missing := l.file() + " cannot be opened"
		if opensLibraries {
			missing += fmt.Sprintf("; install it (rdma-core), or name its file in %s", l.PathVariable())
		}
		l.err = &NotSupportedError{Missing: missing, Err: err}
		return 0, l.err
	}
	l.handle = handle
	if l.Check != nil {
		// a copy: this one is locked
		if err := l.Check(&Library{Name: l.Name, SOName: l.SOName, path: l.path, handle: handle, tried: true}); err != nil {
			l.handle, l.err = 0, &NotSupportedError{Missing: l.file() + " cannot be used", Err: err}
		}
	}
	return l.handle, l.err
}

// Symbol is the address of the default version of a symbol; 0 when the library has none of that name.
func (l *Library) Symbol(name string) (uintptr, error) {
	handle, err := l.open()
	if err != nil {
		return 0, err
	}
	return findSymbol(handle, name), nil
}

// Function is a C function as a header declares it: exported by a library, or standing in a slot of an object. Its methods call
// it, one for each way in which C functions tell that they failed. All of them may block; arguments that are addresses of Go
// memory stay valid during the call when they are converted to uintptr in the call's own parentheses.
type Function struct {
	Library *Library
	Name    string // "ibv_create_qp"
	Since   string // first pinned release that has it, or "" for those that all have
	// Pointers has bit i set when argument i is an address: the first that lies in a software backend's Space decides who is called.
	Pointers uint8
	// With is set for a slot that objects of older libraries are too short to have: a function that the library exports since the
	// same release. Without it, what stands in the slot's place is something else.
	With string

	address atomic.Uintptr // of the symbol, or of With, once it was found
	again   atomic.Pointer[CallError]
}

// Available reports whether the library exports the function; nil, or why not. It says nothing of what a device can do.
func (f *Function) Available() error {
	_, err := f.find()
	return err
}

// Has reports whether an object of the library has the slot whose address was read as given; nil, or why not. An address in a
// software backend's Space is one.
func (f *Function) Has(slot uintptr) error {
	switch {
	case slot == 0:
		return &NotSupportedError{Function: f.Name, Missing: "the device's provider does not have it", Since: f.Since}
	case f.With == "" || f.address.Load() != 0 || inSpace(slot):
		return nil
	}
	address, err := f.Library.Symbol(f.With)
	if err == nil && address == 0 {
		err = &NotSupportedError{Function: f.Name, Missing: "objects of " + f.Library.file() + " do not have the slot", Since: f.Since}
	}
	f.address.Store(address)
	return err
}

// find is the address of the exported function.
func (f *Function) find() (uintptr, error) {
	if address := f.address.Load(); address != 0 {
		return address, nil
	}
	address, err := f.Library.Symbol(f.Name)
	if err != nil {
		missing := err.(*NotSupportedError)
		return 0, &NotSupportedError{Function: f.Name, Missing: missing.Missing, Since: f.Since, Err: missing.Err}
	}
	if address == 0 {
		return 0, &NotSupportedError{Function: f.Name, Missing: f.Library.file() + " does not export it", Since: f.Since}
	}
	f.address.Store(address)
	return address, nil
}

// Nil is the error for an argument that must not be nil.
func (f *Function) Nil(argument string) error {
	return &NilError{Function: f.Name, Argument: argument}
}
