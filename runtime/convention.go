package runtime

// Call is a Function with the decision taken of which code it runs. Its methods make the call, one for each way in which C
// functions tell that they failed. Each may block. An argument that is the address of Go memory is converted to uintptr in the
// parentheses of the call: that keeps the memory alive and in its place. The error is a *CallError, or a *NotSupportedError
// when there was nothing to call.
type Call struct {
	high     [MaxArgs * int(narrow)]uint32 // upper halves of the arguments, where a uintptr has none
	function *Function
	fn       uintptr // slot; 0 for the exported function
	missing  error   // why there is nothing to call, or nil
	backend  Backend // supplies the function; nil to decide by the arguments
}

// Exported calls the function that the library exports, or that of the software backend whose object an argument is.
func (f *Function) Exported() Call { return Call{function: f} }

// From calls the backend's function, for those that take no object; nil means the library.
func (f *Function) From(b Backend) Call { return Call{function: f, backend: b} }

// Slot calls the function whose address a slot holds. 0 is an empty slot.
func (f *Function) Slot(address uintptr) Call {
	return Call{function: f, fn: address, missing: f.Has(address)}
}

// do makes the call.
func (c *Call) do(args []uintptr) (uint64, Errno, error) {
	switch {
	case c.missing != nil:
		return 0, 0, c.missing
	case c.backend != nil:
		return c.software(c.backend, args)
	}
	return c.run(args)
}

// failed is the error with a number. That of EAGAIN is made once: who looks whether there is something gets it all the time.
func (c Call) failed(errno Errno) error {
	if errno != eagain {
		return &CallError{Function: c.function.Name, Errno: errno}
	}
	e := c.function.again.Load()
	if e == nil {
		e = &CallError{Function: c.function.Name, Errno: errno}
		c.function.again.Store(e)
	}
	return e
}

// Errno is for a C int that is 0 or the number of the error. Of functions that some libraries let return -1 and set errno,
// errno is taken.
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

// MinusOne is for a C int that is -1 after an error, with errno set, and else a value.
//
//go:uintptrescapes
func (c Call) MinusOne(args ...uintptr) (int, error) {
	result, errno, err := c.do(args)
	if r := int(int32(result)); err != nil || r != -1 {
		return r, err
	}
	return -1, c.failed(errno)
}

// Status is for a C int that is 0, or -1 after an error, with errno set. Whatever else it is, is the number of an error: some
// functions pass on what another one returned.
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

// Status3 is Status for three arguments. It allocates nothing when C succeeds, or answers EAGAIN: ibv_get_cq_event is called for every event.
//
//go:uintptrescapes
func (c Call) Status3(a, b, d uintptr) error {
	args := [...]uintptr{a, b, d}
	result, errno, err := c.do(args[:])
	return c.status(result, errno, err)
}

// MinusOneLong is MinusOne for a C ssize_t or off_t.
//
//go:uintptrescapes
func (c Call) MinusOneLong(args ...uintptr) (int64, error) {
	result, errno, err := c.do(args)
	if r := int64(int(result)); err != nil || r != -1 {
		return r, err
	}
	return -1, c.failed(errno)
}

// NegativeErrno is for a C int that is negative after an error, the number of which it then is, and else a value.
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

// NegativeErrnoLong is NegativeErrno for a C ssize_t.
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

// Null is for a pointer that is NULL after an error, with errno set.
//
//go:uintptrescapes
func (c Call) Null(args ...uintptr) (uintptr, error) {
	result, errno, err := c.do(args)
	if err == nil && result == 0 {
		err = c.failed(errno)
	}
	return uintptr(result), err
}

// NullOK is for a pointer that may be NULL without an error.
//
//go:uintptrescapes
func (c Call) NullOK(args ...uintptr) (uintptr, error) {
	result, _, err := c.do(args)
	return uintptr(result), err
}

// Value is for a function that cannot fail, whatever its result is. The bits above those of the C type mean nothing.
//
//go:uintptrescapes
func (c Call) Value(args ...uintptr) (uint64, error) {
	result, _, err := c.do(args)
	return result, err
}

// Void is for a function without a result.
//
//go:uintptrescapes
func (c Call) Void(args ...uintptr) error {
	_, _, err := c.do(args)
	return err
}

// Raw is for a function with rules of its own: its result and errno as they are. errno means nothing after a success.
//
//go:uintptrescapes
func (c Call) Raw(args ...uintptr) (result uint64, errno Errno, err error) {
	return c.do(args)
}

// negative is the number of an error: -r, but for libraries that return -1 and set errno.
func negative(r int64, errno Errno) Errno {
	if r == -1 && errno != 0 {
		return errno
	}
	return Errno(-r)
}
