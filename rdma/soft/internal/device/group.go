// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"errors"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// multicastQPN is the number of all queue pairs of a group.
const multicastQPN = 0xffffff

// attach makes it a member of a multicast group. The caller holds Fabric.mu.
func (q *QP) attach(group [16]byte) runtime.Errno {
	e, p := q.on, q.port
	if slices.Contains(e.groups[group], q) {
		return 0
	}
	same := 0 // of the group, on this device
	for _, other := range e.groups[group] {
		if other.port == p {
			same++
		}
	}
	if same == maxGroupQPs || same == 0 && p.groups == p.mostGroups {
		return syscall.ENOMEM
	}
	if same == 0 {
		if errno := p.join(group); errno != 0 {
			return errno
		}
		p.groups++
	}
	e.groups[group] = append(e.groups[group], q)
	q.groups++
	return 0
}

// join subscribes the device to messages that other fabrics send to a multicast group.
func (d *Port) join(group [16]byte) runtime.Errno {
	if !d.wired || d.gone {
		return 0
	}
	for _, l := range d.links {
		if !l.Reaches(group) {
			continue
		}
		joined, err := d.on.outer.Join(l, group)
		if err != nil {
			errno := syscall.ENODEV // of an error of package net
			errors.As(err, &errno)
			return errno
		}
		d.joined[group] = joined
		return 0
	}
	return syscall.EAFNOSUPPORT
}

// leave undoes join.
func (d *Port) leave(group [16]byte) {
	if l := d.joined[group]; l != nil {
		delete(d.joined, group)
		d.on.outer.Detach(l)
	}
}

// detach ends the membership. The caller holds Fabric.mu.
func (q *QP) detach(group [16]byte) runtime.Errno {
	e, p := q.on, q.port
	i := slices.Index(e.groups[group], q)
	if i < 0 {
		return syscall.EINVAL
	}
	e.groups[group] = slices.Delete(e.groups[group], i, i+1)
	if !slices.ContainsFunc(e.groups[group], func(other *QP) bool { return other.port == p }) {
		p.groups--
		p.leave(group)
	}
	if len(e.groups[group]) == 0 {
		delete(e.groups, group)
	}
	q.groups--
	return 0
}
