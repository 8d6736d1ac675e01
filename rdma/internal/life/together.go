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

// UseAll is Use of several objects, or of none if one of them is closed.
func UseAll(verb string, all ...*Life) error {
	for i, l := range all {
		if err := l.Use(verb); err != nil {
			DoneAll(all[:i]...)
			return err
		}
	}
	return nil
}

// DoneAll ends calls of several objects.
func DoneAll(all ...*Life) {
	for _, l := range all {
		l.Done()
	}
}

// Close closes an object: it fails while there are children, waits for calls in progress, and destroys the object in C.
// If C fails, the object stays open. A second Close waits for a Close in progress, and returns nil.
func (l *Life) Close() error { return Close(nil, l) }

// Close closes objects that may need one another, or none while others need one. Children are closed before their
// parents, otherwise in the given order. ready, which may be nil, is called when no call is in progress and none can
// begin; its error leaves all open. If one object is not destroyed, those before it are gone, which the error reports,
// and the others stay open. The error of a destroyed object does not stop the others.
func Close(ready func() error, all ...*Life) error {
	if err := Needed(all...); err != nil { // before anybody is woken
		return err
	}
	together := setOf(all)
	open := make(set, len(all))
	defer func() {
		for l := range open {
			l.goOn()
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
			return joined(late, halfway(err, order[:i]))
		case err != nil:
			late = joined(late, err)
		}
		l.become(closed)
		delete(open, l)
	}
	return late
}

// joined returns both errors joined; the first one may be nil.
func joined(a, b error) error {
	if a == nil {
		return b
	}
	return errors.Join(a, b)
}

// Needed returns the error that Close would return for objects that others need, or nil, without closing or waking
// anything.
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

// halfway adds to the error of an object that was not destroyed which objects were closed before it.
func halfway(err error, gone []*Life) error {
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

// youngestFirst returns the order in which every caller begins to close objects, without duplicates. So two calls for
// the same objects cannot deadlock: a call that waits for another one has begun nothing that the other one waits for.
func youngestFirst(all []*Life) []*Life {
	if len(all) < 2 {
		return all
	}
	order := slices.Clone(all)
	slices.SortFunc(order, func(a, b *Life) int { return cmp.Compare(b.number, a.number) })
	return slices.Compact(order)
}

// childrenFirst is the order in which those of all that are open are destroyed: the given one, but each behind those
// that need it. Age does not tell: a parent may be younger than the child that joined it. It needs no lock: no call is
// under way that could change parents.
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
		for _, p := range l.parents { // no call is under way that could change them
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
