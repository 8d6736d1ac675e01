// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"errors"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// MulticastQPN is the number of all queue pairs of a group.
const MulticastQPN = 0xffffff

// Attach makes it a member of a multicast group. The caller holds Fabric.mu.
func (q *QP) Attach(group [16]byte) runtime.Errno {
	e, p := q.On, q.Port
	if slices.Contains(e.groups[group], q) {
		return 0
	}
	same := 0 // of the group, on this device
	for _, other := range e.groups[group] {
		if other.Port == p {
			same++
		}
	}
	if same == MaxGroupQPs || same == 0 && p.Groups == p.MostGroups {
		return syscall.ENOMEM
	}
	if same == 0 {
		if errno := p.join(group); errno != 0 {
			return errno
		}
		p.Groups++
	}
	e.groups[group] = append(e.groups[group], q)
	q.Groups++
	return 0
}

// join subscribes the device to messages that other fabrics send to a multicast group.
func (d *Port) join(group [16]byte) runtime.Errno {
	if !d.Wired || d.Gone {
		return 0
	}
	for _, l := range d.Links {
		if !l.Reaches(group) {
			continue
		}
		joined, err := d.On.Outer.Join(l, group)
		if err != nil {
			errno := syscall.ENODEV // of an error of package net
			errors.As(err, &errno)
			return errno
		}
		d.Joined[group] = joined
		return 0
	}
	return syscall.EAFNOSUPPORT
}

// leave undoes join.
func (d *Port) leave(group [16]byte) {
	if l := d.Joined[group]; l != nil {
		delete(d.Joined, group)
		d.On.Outer.Detach(l)
	}
}

// Detach ends the membership. The caller holds Fabric.mu.
func (q *QP) Detach(group [16]byte) runtime.Errno {
	e, p := q.On, q.Port
	i := slices.Index(e.groups[group], q)
	if i < 0 {
		return syscall.EINVAL
	}
	e.groups[group] = slices.Delete(e.groups[group], i, i+1)
	if !slices.ContainsFunc(e.groups[group], func(other *QP) bool { return other.Port == p }) {
		p.Groups--
		p.leave(group)
	}
	if len(e.groups[group]) == 0 {
		delete(e.groups, group)
	}
	q.Groups--
	return 0
}
