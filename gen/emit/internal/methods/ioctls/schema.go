// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package ioctls

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/goverbs/goverbs/generated/uapi"
)

// Method is a method of RDMA_VERBS_IOCTL. Objects, methods and attributes of drivers have numbers from
// [uapi.UVERBS_ID_DRIVER_NS] on.
type Method struct {
	Object uapi.UverbsDefaultObjects
	ID     uint16 // among the methods of the object
	Name   string // C: "UVERBS_METHOD_CQ_CREATE"
	Attrs  []Attr
}

// Attr is an attribute of a method, as the kernel checks it before the method runs.
type Attr struct {
	ID   uint16
	Name string // C: "UVERBS_ATTR_CREATE_CQ_HANDLE"
	Kind Kind
	// Access is the access of the method to an object, and Object its type. Both are zero for other kinds.
	Access Access
	Object uapi.UverbsDefaultObjects
	// Min and Max bound the bytes of In and Out, and the handles of Handles. A Max of 65535 is no limit.
	Min, Max uint16
	// Values bound the bytes of data for each value of an Enum.
	Values       []Range
	Mandatory    bool // a request without it fails with EINVAL
	ZeroTrailing bool // In: longer than Max is accepted if the bytes after Max are zero; Out: is accepted
	Copied       bool // the kernel copies the data before the method runs, so a bad address fails early with EFAULT
	Driver       bool // the driver interprets the data
}

// AnyObject is the Object of a handle that may name an object of any type of the driver.
const AnyObject uapi.UverbsDefaultObjects = 0xffff

// Range bounds a number of bytes.
type Range struct{ Min, Max uint16 }

// Kind is the kind of an attribute.
type Kind uint8

// The kinds of attributes, in the kernel's numbering. Data of up to 8 bytes that the kernel reads is in the attribute
// itself.
const (
	In      Kind = iota + 1 // data that the kernel reads
	Out                     // memory that the kernel writes
	Handle                  // a handle of an object
	FD                      // the file descriptor of an object
	RawFD                   // any file descriptor
	Enum                    // one of several values, each with data of its own
	Handles                 // an array of handles
)

// String returns the kind in lower case.
func (k Kind) String() string { return name(kinds[:], uint8(k)) }

// Access is the access of a method to an object.
type Access uint8

// The kinds of access, in the kernel's numbering.
const (
	Read    Access = iota // shared use
	Write                 // exclusive use
	New                   // creation: the kernel writes the handle
	Destroy               // destruction
)

// String returns the access in lower case.
func (a Access) String() string { return name(accesses[:], uint8(a)) }

var (
	kinds    = [...]string{"", "in", "out", "handle", "fd", "raw fd", "enum", "handles"}
	accesses = [...]string{"read", "write", "new", "destroy"}
)

func name(names []string, n uint8) string {
	if int(n) < len(names) && names[n] != "" {
		return names[n]
	}
	return "0x" + strconv.FormatUint(uint64(n), 16)
}

// Kernels lists the recorded kernels, the earliest first.
func Kernels() []string {
	var names []string
	for _, k := range kernels {
		names = append(names, k.name)
	}
	return names
}

// Methods returns the methods of a recorded kernel that devices of a driver may have, ordered by object and ID: the
// core's, and those and the attributes that the driver adds. With [uapi.RDMA_DRIVER_UNKNOWN] they are the core's. It
// returns nil for another kernel. The result may be shared and must not be modified.
//
// The drivers with methods of their own are mlx5, and bnxt_re from 6.12 on. Debian's kernels for amd64, from which the
// tables are read, do not include efa, hns and erdma.
func Methods(kernel string, driver uapi.RDMADriverID) []Method {
	i := slices.IndexFunc(kernels, func(k schema) bool { return k.name == kernel })
	if i < 0 {
		return nil
	}
	added := kernels[i].drivers[driver]
	if len(added) == 0 {
		return kernels[i].methods
	}
	all := slices.Clone(kernels[i].methods)
	for _, m := range added {
		j, found := slices.BinarySearchFunc(all, m, compare)
		if found {
			all[j].Attrs = slices.Concat(all[j].Attrs, m.Attrs)
		} else {
			all = slices.Insert(all, j, m)
		}
	}
	return all
}

func compare(a, b Method) int {
	return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.ID, b.ID))
}

// schema holds the methods of a kernel, and what drivers add.
type schema struct {
	name    string
	methods []Method
	drivers map[uapi.RDMADriverID][]Method
}
