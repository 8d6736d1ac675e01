// SPDX-License-Identifier: BSD-2-Clause

package life

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// set is objects that are closed together.
type set map[*Life]struct{}

func setOf(all []*Life) set {
	s := make(set, len(all))
	for _, l := range all {
		s[l] = struct{}{}
	}
	return s
}

// UseAll is Use of several objects, or of none when one of them is closed.
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

// Close closes an object: it refuses while children live, waits for calls under way, and destroys it in C. Where C
// refuses, the object stays open. Closing again waits for a Close under way, and gives nil.
func (l *Life) Close() error { return Close(nil, l) }

// Close closes objects that may need one another, or none while others need one. Children go before their parents, and
// otherwise in the order in which they are given. ready, which may be nil, is called once no call is under way any more
// and none can begin; its error leaves all open. Where one is not destroyed, those before it are gone, which the error
// says, and the others stay open. An error of one that is gone keeps none open.
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

// joined is both errors; the first one may be nil.
func joined(a, b error) error {
	if a == nil {
		return b
	}
	return errors.Join(a, b)
}

// Needed is the error that Close would give of objects that others need, or nil: it closes nothing, and wakes nobody.
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

// halfway adds to the error of an object that is not destroyed which ones were closed before it.
func halfway(err error, gone []*Life) error {
	inner, ok := err.(*verberr.VerbError)
	if !ok || len(gone) == 0 {
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
	return &e
}

// youngestFirst is the order in which everybody begins to close objects, each once. Two that close the same ones then
// do not wait for each other: a Close that waits for another one has begun nothing that the other one waits for.
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
