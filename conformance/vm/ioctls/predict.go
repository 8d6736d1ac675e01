// SPDX-License-Identifier: BSD-2-Clause

// Package ioctls predicts from generated/ioctls how a kernel answers attributes of RDMA_VERBS_IOCTL, and tests the
// predictions in guests: every attribute of every method, right and wrong in each way.
package ioctls

import (
	"fmt"
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

// inline is the largest length of data that is in the attribute itself.
const inline = 8

// Device lists the types of objects that a driver does not implement.
type Device []uapi.UverbsDefaultObjects

// Lacks reports whether the device has no such method: those of types that it does not implement are removed, and those
// that need an object of such a type.
func (d Device) Lacks(m ioctls.Method) bool {
	return slices.Contains(d, m.Object) || slices.ContainsFunc(m.Attrs, func(a ioctls.Attr) bool {
		return a.Mandatory && a.Kind == ioctls.Handle && slices.Contains(d, a.Object)
	})
}

// Predict returns the errno with which the kernel rejects an attribute of a method, or 0. The kernel ignores
// unknown flags.
func (d Device) Predict(m ioctls.Method, g Given) syscall.Errno {
	for _, a := range m.Attrs {
		if a.ID == g.ID {
			return d.predictAttr(a, g)
		}
	}
	if g.Flags&uapi.UVERBS_ATTR_F_MANDATORY != 0 {
		return syscall.EPROTONOSUPPORT
	}
	return 0 // ignored
}

func (d Device) predictAttr(a ioctls.Attr, g Given) syscall.Errno {
	least, most := int(a.Min), int(a.Max)
	if a.Kind == ioctls.Enum {
		value := int(g.Reserved & 0xff)
		switch {
		case value >= len(a.Values):
			return syscall.EOPNOTSUPP
		case g.Reserved>>8 != 0:
			return syscall.EINVAL
		}
		least, most = int(a.Values[value].Min), int(a.Values[value].Max)
	} else if g.Reserved != 0 {
		return syscall.EINVAL
	}
	switch a.Kind {
	case ioctls.Handle, ioctls.FD, ioctls.RawFD:
		switch {
		case g.Length != 0:
			return syscall.EINVAL
		case a.Kind == ioctls.RawFD || a.Access == ioctls.New || g.object == right:
			return 0
		case a.Kind == ioctls.FD:
			return syscall.EBADF
		case g.object == other || slices.Contains(d, a.Object):
			return syscall.EINVAL
		}
		return syscall.ENOENT
	}
	longer := g.Length > most && most != 0xffff
	in := a.Kind != ioctls.Out
	switch {
	case g.Length < least || longer && !a.ZeroTrailing:
		return syscall.EINVAL
	case in && longer && (g.tail || g.bad): // the tail cannot be read, or is not zero
		return syscall.EOPNOTSUPP
	case in && a.Copied && g.Length > inline && g.bad:
		return syscall.EFAULT
	}
	return 0
}

// Check returns an error for a request that a kernel with these methods rejects before the method runs, and for one to
// a method that is not among them. Methods and attributes of drivers are not checked; a driver's first attributes have
// the numbers of UVERBS_ATTR_UHW_IN and UVERBS_ATTR_UHW_OUT in methods that lack these.
func Check(methods []ioctls.Method, header *uapi.IBUverbsIoctlHdr) error {
	if header.ObjectID >= uapi.UVERBS_ID_DRIVER_NS || header.MethodID >= uapi.UVERBS_ID_DRIVER_NS {
		return nil
	}
	i := slices.IndexFunc(methods, func(m ioctls.Method) bool {
		return uint16(m.Object) == header.ObjectID && m.ID == header.MethodID
	})
	if i < 0 {
		return fmt.Errorf("method %d of object %d: %w", header.MethodID, header.ObjectID, syscall.EPROTONOSUPPORT)
	}
	m, seen := methods[i], map[uint16]bool{}
	for _, a := range header.Attrs(int(header.NumAttrs)) {
		g := Given{ID: a.AttrID, Length: int(a.Len), Flags: a.Flags, Reserved: *a.AttrData.Reserved()}
		errno := Device(nil).Predict(m, g)
		switch {
		case seen[g.ID]:
			return fmt.Errorf("%s, attribute %d twice: %w", m.Name, g.ID, syscall.EINVAL)
		case errno != 0 && (g.ID < uapi.UVERBS_ID_DRIVER_NS ||
			slices.ContainsFunc(m.Attrs, func(a ioctls.Attr) bool { return a.ID == g.ID })):
			return fmt.Errorf("%s, attribute %d of %d bytes: %w", m.Name, g.ID, g.Length, errno)
		}
		seen[g.ID] = true
	}
	for _, a := range m.Attrs {
		if a.Mandatory && !seen[a.ID] {
			return fmt.Errorf("%s without %s: %w", m.Name, a.Name, syscall.EINVAL)
		}
	}
	return nil
}
