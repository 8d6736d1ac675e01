// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package ioctls

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/uapi"
)

// Check returns an error for a request that a kernel with these methods rejects before the method runs. The error wraps
// the errno that the kernel returns: EINVAL, EOPNOTSUPP, or EPROTONOSUPPORT for unknown methods and mandatory
// attributes. attrs are the attributes behind the header in memory.
//
// Check reads the request alone. For a request without an error, the kernel may still find that a handle or a file
// descriptor names no object or one of another type (ENOENT, EBADF, EINVAL), that an address is not mapped (EFAULT), that
// longer data than it knows is not zero (EOPNOTSUPP), that the device lacks the method (EPROTONOSUPPORT), or that the
// header names another driver (EINVAL). Then the method runs and may fail, too.
func Check(methods []Method, header *uapi.IBUverbsIoctlHdr, attrs []uapi.IBUverbsAttr) error {
	switch {
	case int(header.NumAttrs) != len(attrs) ||
		uintptr(header.Length) != unsafe.Sizeof(*header)+uintptr(len(attrs))*unsafe.Sizeof(uapi.IBUverbsAttr{}):
		return fmt.Errorf("request of %d bytes with %d attributes, %d expected: %w", header.Length, len(attrs),
			header.NumAttrs, syscall.EINVAL)
	case header.Reserved1 != 0 || header.Reserved2 != 0:
		return fmt.Errorf("reserved fields of the header are not zero: %w", syscall.EPROTONOSUPPORT)
	}
	i, ok := slices.BinarySearchFunc(methods,
		Method{Object: uapi.UverbsDefaultObjects(header.ObjectID), ID: header.MethodID}, compare)
	if !ok {
		return fmt.Errorf("unknown method %d of object %d: %w", header.MethodID, header.ObjectID, syscall.EPROTONOSUPPORT)
	}
	m, given := methods[i], make([]bool, len(methods[i].Attrs))
	for j := range attrs {
		a := &attrs[j]
		if errno := m.CheckAttr(a); errno != 0 {
			return fmt.Errorf("%s: attribute %d of %d bytes: %w", m.Name, a.AttrID, a.Len, errno)
		}
		if k := m.index(a.AttrID); k >= 0 {
			if given[k] {
				return fmt.Errorf("%s: %s twice: %w", m.Name, m.Attrs[k].Name, syscall.EINVAL)
			}
			given[k] = true
		}
	}
	for k, a := range m.Attrs {
		if a.Mandatory && !given[k] {
			return fmt.Errorf("%s: no %s: %w", m.Name, a.Name, syscall.EINVAL)
		}
	}
	return nil
}

// CheckAttr returns the errno with which the kernel rejects an attribute of the method, as [Check] describes, or 0. The
// kernel ignores unknown attributes that are not mandatory, and unknown flags.
func (m Method) CheckAttr(given *uapi.IBUverbsAttr) syscall.Errno {
	i := m.index(given.AttrID)
	if i < 0 {
		if given.Flags&uapi.UVERBS_ATTR_F_MANDATORY != 0 {
			return syscall.EPROTONOSUPPORT
		}
		return 0
	}
	a := m.Attrs[i]
	least, most := int(a.Min), int(a.Max)
	if a.Kind == Enum {
		value := given.AttrData.EnumData()
		switch {
		case int(value.ElemID) >= len(a.Values):
			return syscall.EOPNOTSUPP
		case value.Reserved != 0:
			return syscall.EINVAL
		}
		least, most = int(a.Values[value.ElemID].Min), int(a.Values[value.ElemID].Max)
	} else if *given.AttrData.Reserved() != 0 {
		return syscall.EINVAL
	}
	length := int(given.Len)
	switch a.Kind {
	case Handle, FD, RawFD:
		least, most = 0, 0
	case Handles:
		if length%handleSize != 0 {
			return syscall.EINVAL
		}
		length /= handleSize
	}
	if length < least || length > most && !a.ZeroTrailing {
		return syscall.EINVAL
	}
	return 0
}

// handleSize is the size of a handle in an array of handles.
const handleSize = 4

// index returns the index of an attribute in Attrs, or -1.
func (m Method) index(id uint16) int {
	return slices.IndexFunc(m.Attrs, func(a Attr) bool { return a.ID == id })
}
