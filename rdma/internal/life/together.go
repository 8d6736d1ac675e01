// SPDX-License-Identifier: BSD-2-Clause

package life

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// set is a set of objects that are closed together.
type set map[*Life]struct{}

func setOf(all []*Life) set {
	s := make(set, len(all))
	for _, l := range all {
		s[l] = struct{}{}
	}
	return s
}

// UseAll calls Use on several objects. If one of them is closed, it uses none.
func UseAll(verb string, all ...*Life) error {
	for i, l := range all {
		if err := l.Use(verb); err != nil {
			DoneAll(all[:i]...)
			return err
		}
	}
	return nil
}

// DoneAll calls Done on several objects.
func DoneAll(all ...*Life) {
	for _, l := range all {
		l.Done()
	}
}

// Close closes an object. It fails if there are children. It waits for calls in progress and destroys the object in C;
// if that fails, the object stays open. A second Close waits for a Close in progress and returns nil.
func (l *Life) Close() error { return Close(nil, l) }

// Close closes objects that may need one another. If other objects need one of them, it closes none. It closes children
// before their parents, and otherwise keeps the given order. ready, which may be nil, is called when no call is in
// progress and none can begin; if it returns an error, all objects stay open. If destroying an object fails, the
// objects before it are gone, the error names them, and the others stay open. An error of an object that is gone does
// not stop Close.
func Close(ready func() error, all ...*Life) error {
	if err := Needed(all...); err != nil { // before any wait is ended
		return err
	}
	together := setOf(all)
	open := make(set, len(all))
	defer func() {
		for l := range open {
			l.reopen()
		}
	}()
	for _, l := range youngestFirst(all) {
		began, err := l.begin(together)
		if err != nil {
			return err
		}
		if began {
			open[l] = struct{}{}
		}
	}
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	order, late := childrenFirst(all, open), error(nil)
	for i, l := range order {
		gone, err := l.finish()
		switch {
		case !gone:
			return joined(late, partial(err, order[:i]))
		case err != nil:
			late = joined(late, err)
		}
		l.become(closed)
		delete(open, l)
	}
	return late
}

// joined joins two errors. a may be nil.
func joined(a, b error) error {
	if a == nil {
		return b
	}
	return errors.Join(a, b)
}

// Needed returns an error if Close of these objects would fail because others need them. It changes nothing.
func Needed(all ...*Life) error {
	together := setOf(all)
	for _, l := range all {
		l.mu.Lock()
		err := l.neededBy(together)
		l.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// partial adds the names of the closed objects to the error of an object that could not be destroyed.
func partial(err error, gone []*Life) error {
	inner := verberr.Of(err)
	if inner == nil || len(gone) == 0 {
		return err
	}
	names := make([]string, len(gone))
	for i, l := range gone {
		names[i] = l.name
	}
	e := *inner
	e.Reason = "closed before it: " + strings.Join(names, ", ")
	if inner.Reason != "" {
		e.Reason = inner.Reason + "; " + e.Reason
	}
	return verberr.New(e)
}

// youngestFirst returns the objects without duplicates, in the order in which every caller begins to close them. The
// common order prevents deadlocks between calls with the same objects.
func youngestFirst(all []*Life) []*Life {
	if len(all) < 2 {
		return all
	}
	order := slices.Clone(all)
	slices.SortFunc(order, func(a, b *Life) int { return cmp.Compare(b.number, a.number) })
	return slices.Compact(order)
}

// childrenFirst returns the objects in open in the order in which they are destroyed: the order of all, but children
// before parents. A parent may be younger than a child that has joined it. It needs no lock, because no call is in
// progress that could change parents.
//
// +checklocksignore
func childrenFirst(all []*Life, open set) []*Life {
	if len(all) == len(open) && len(all) < 2 {
		return all
	}
	children := make(map[*Life][]*Life)
	for _, l := range all {
		if _, ok := open[l]; !ok {
			continue
		}
		for _, p := range l.parents { // cannot change: no call is in progress
			children[p] = append(children[p], l)
		}
	}
	order, seen := make([]*Life, 0, len(open)), make(set, len(open))
	var add func(l *Life)
	add = func(l *Life) {
		if _, ok := seen[l]; ok {
			return
		}
		seen[l] = struct{}{}
		for _, c := range children[l] {
			add(c)
		}
		order = append(order, l)
	}
	for _, l := range all {
		if _, ok := open[l]; ok {
			add(l)
		}
	}
	return order
}
