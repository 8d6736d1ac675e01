// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "syscall"

// Call is a Function together with the code that will run: exported, in a slot, or a backend's. There is one method for
// each convention by which C functions report failure. Each method may block. Convert the address of Go memory to
// uintptr in the parentheses of the call: that keeps the memory alive and in place. The error is a *CallError, or a
// *NotSupportedError if there is nothing to call.
type Call struct {
	high     [maxArgs * int(narrow)]uint32 // upper halves of the arguments on 32-bit machines
	function *Function
	fn       uintptr // slot; 0 for the exported function
	missing  error   // why there is nothing to call, or nil
	observed Observation
	backend  Backend // supplies the function; if nil, the arguments decide
}

// Exported calls the function that the library exports, or the software backend's if an argument is one of its objects.
func (f *Function) Exported() Call { return Call{function: f} }

// From calls the backend's function, for functions without an object argument. With nil or Native it calls the library.
func (f *Function) From(b Backend) Call {
	if b == Native {
		b = nil
	}
	return Call{function: f, backend: b}
}

// Slot calls the function whose address a slot holds. The address 0 means that the slot is empty.
func (f *Function) Slot(address uintptr) Call {
	return Call{function: f, fn: address, missing: f.Has(address)}
}

// Wide sets the upper 32 bits of argument i, which a uintptr on 32-bit machines lacks. On 64-bit machines it does
// nothing.
func (c Call) Wide(i int, v uint64) Call {
	if wide == 0 {
		c.high[i] = uint32(v >> 32)
	}
	return c
}

// do makes the call.
func (c *Call) do(args []uintptr) (uint64, Errno, error) {
	if f := observer.Load(); f != nil {
		return c.watched(*f, args)
	}
	return c.make(args)
}

func (c *Call) make(args []uintptr) (uint64, Errno, error) {
	switch {
	case c.missing != nil:
		return 0, 0, c.missing
	case c.backend != nil:
		return c.software(c.backend, args)
	}
	return c.run(args)
}

// failed returns the error for an errno. The error for EAGAIN is cached, because polling programs get it often.
func (c Call) failed(errno Errno) error {
	if c.observed != nil {
		c.observed.Failed(errno)
	}
	if errno != syscall.EAGAIN {
		return &CallError{Function: c.function.Name, Errno: errno}
	}
	e := c.function.again.Load()
	if e == nil {
		e = &CallError{Function: c.function.Name, Errno: errno}
		c.function.again.Store(e)
	}
	return e
}

// Errno is for functions that return a C int: 0 or an error number. Some libraries return -1 and set errno instead;
// then errno is the error.
//
//go:uintptrescapes
func (c Call) Errno(args ...uintptr) error {
	result, errno, err := c.do(args)
	switch r := int64(int32(result)); {
	case err != nil:
		return err
	case r == 0:
		return nil
	case r == -1 && errno != 0:
		return c.failed(errno)
	case r < 0:
		return c.failed(Errno(-r))
	default:
		return c.failed(Errno(r))
	}
}

// MinusOne is for functions that return a C int: -1 after an error, with errno set, and a value otherwise.
//
//go:uintptrescapes
func (c Call) MinusOne(args ...uintptr) (int, error) {
	result, errno, err := c.do(args)
	if r := int(int32(result)); err != nil || r != -1 {
		return r, err
	}
	return -1, c.failed(errno)
}

// Status is for functions that return a C int: 0, or -1 after an error, with errno set. Any other value is an error
// number, because some functions return the result of another one.
//
//go:uintptrescapes
func (c Call) Status(args ...uintptr) error {
	result, errno, err := c.do(args)
	return c.status(result, errno, err)
}

func (c Call) status(result uint64, errno Errno, err error) error {
	switch r := int64(int32(result)); {
	case err != nil:
		return err
	case r == 0:
		return nil
	case r == -1:
		return c.failed(errno)
	case r < 0:
		return c.failed(Errno(-r))
	default:
		return c.failed(Errno(r))
	}
}

// Status3 is Status with three arguments. It does not allocate if C succeeds or returns EAGAIN, because
// ibv_get_cq_event is called for every event.
//
//go:uintptrescapes
func (c Call) Status3(a, b, d uintptr) error {
	args := [...]uintptr{a, b, d}
	result, errno, err := c.do(args[:])
	return c.status(result, errno, err)
}

// MinusOneLong is MinusOne for functions that return a C ssize_t or off_t.
//
//go:uintptrescapes
func (c Call) MinusOneLong(args ...uintptr) (int64, error) {
	result, errno, err := c.do(args)
	if r := int64(int(result)); err != nil || r != -1 {
		return r, err
	}
	return -1, c.failed(errno)
}

// NegativeErrno is for functions that return a C int: the negative number of an error, or a value.
//
//go:uintptrescapes
func (c Call) NegativeErrno(args ...uintptr) (int, error) {
	result, errno, err := c.do(args)
	if r := int64(int32(result)); err != nil || r >= 0 {
		return int(r), err
	} else {
		return int(r), c.failed(negative(r, errno))
	}
}

// NegativeErrnoLong is NegativeErrno for functions that return a C ssize_t.
//
//go:uintptrescapes
func (c Call) NegativeErrnoLong(args ...uintptr) (int64, error) {
	result, errno, err := c.do(args)
	r := int64(int(result)) // as wide as ssize_t
	if err != nil || r >= 0 {
		return r, err
	}
	return r, c.failed(negative(r, errno))
}

// Code is for functions that return a C int: 0, or the library's own error number, which code converts to an error. It
// does not allocate if the function fails as it did before, because polling programs get such an error often.
//
//go:uintptrescapes
func (c Call) Code(code func(int32) error, args ...uintptr) error {
	result, errno, err := c.do(args)
	n := int32(result)
	if err != nil || n == 0 {
		return err
	}
	last := c.function.code.Load()
	if last == nil || last.number != n || last.Errno != errno {
		last = &failure{CodeError{Function: c.function.Name, Code: code(n), Errno: errno}, n}
		c.function.code.Store(last)
	}
	return &last.CodeError
}

// failure is a cached error of a library's own, with its number.
type failure struct {
	CodeError
	number int32
}

// Null is for functions that return a pointer: NULL after an error, with errno set.
//
//go:uintptrescapes
func (c Call) Null(args ...uintptr) (uintptr, error) {
	result, errno, err := c.do(args)
	if err == nil && result == 0 {
		err = c.failed(errno)
	}
	return uintptr(result), err
}

// NullOK is for functions that return a pointer that may be NULL without an error.
//
//go:uintptrescapes
func (c Call) NullOK(args ...uintptr) (uintptr, error) {
	result, _, err := c.do(args)
	return uintptr(result), err
}

// Value is for functions that cannot fail. Bits above those of the C type are undefined.
//
//go:uintptrescapes
func (c Call) Value(args ...uintptr) (uint64, error) {
	result, _, err := c.do(args)
	return result, err
}

// Void is for functions without a result.
//
//go:uintptrescapes
func (c Call) Void(args ...uintptr) error {
	_, _, err := c.do(args)
	return err
}

// Raw is for functions with other conventions. It returns the result and errno unchanged. After a success, errno is
// undefined.
//
//go:uintptrescapes
func (c Call) Raw(args ...uintptr) (result uint64, errno Errno, err error) {
	return c.do(args)
}

// negative returns the number of an error: -r, or errno if the library returned -1 and set it.
func negative(r int64, errno Errno) Errno {
	if r == -1 && errno != 0 {
		return errno
	}
	return Errno(-r)
}
