// SPDX-License-Identifier: BSD-2-Clause

// Package ioctls predicts from generated/ioctls how a kernel answers attributes of RDMA_VERBS_IOCTL, and tests the
// predictions in guests: every attribute of every method, right and wrong in each way.
package ioctls

import (
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ioctls"
	"github.com/goverbs/goverbs/generated/uapi"
)

// Given is an attribute in a request.
type Given struct {
	ID       uint16
	Length   int
	Reserved uint16 // for an enumeration, its value
	Flags    uapi.UVERBSAttrFlags
	object   object // for handles and file descriptors
	tail     bool   // the bytes after the attribute's maximum are not all zero
	bad      bool   // the address of the data is not mapped
}

// object is the object that a handle or a file descriptor names.
type object uint8

const (
	right   object = iota // of the attribute's type
	unknown               // none
	other                 // of another type
)

// Device lists the types of objects that a driver does not implement.
type Device []uapi.UverbsDefaultObjects

// Lacks reports whether the device has no such method: those of types that it does not implement are removed, and those
// that need an object of such a type.
func (d Device) Lacks(m ioctls.Method) bool {
	return slices.Contains(d, m.Object) || slices.ContainsFunc(m.Attrs, func(a ioctls.Attr) bool {
		return a.Mandatory && a.Kind == ioctls.Handle && slices.Contains(d, a.Object)
	})
}

// Predict returns the errno with which the kernel rejects an attribute of a method, or 0.
func (d Device) Predict(m ioctls.Method, g Given) syscall.Errno {
	given := uapi.IBUverbsAttr{AttrID: g.ID, Len: uint16(g.Length), Flags: g.Flags}
	*given.AttrData.Reserved() = g.Reserved
	if errno := m.CheckAttr(&given); errno != 0 {
		return errno
	}
	i := slices.IndexFunc(m.Attrs, func(a ioctls.Attr) bool { return a.ID == g.ID })
	if i < 0 {
		return 0
	}
	switch a := m.Attrs[i]; a.Kind {
	case ioctls.Handle, ioctls.FD:
		switch {
		case a.Access == ioctls.New || g.object == right:
			return 0
		case a.Kind == ioctls.FD:
			return syscall.EBADF
		case g.object == other || slices.Contains(d, a.Object):
			return syscall.EINVAL
		}
		return syscall.ENOENT
	case ioctls.In, ioctls.Enum:
		if g.Length > int(a.Max) && a.Kind == ioctls.In && (g.tail || g.bad) {
			return syscall.EOPNOTSUPP // the tail cannot be read, or is not zero
		}
		if a.Copied && g.Length > inline && g.bad {
			return syscall.EFAULT
		}
	}
	return 0
}

// inline is the maximum length of data stored in the attribute itself.
const inline = 8
