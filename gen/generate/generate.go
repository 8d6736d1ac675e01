// SPDX-License-Identifier: BSD-2-Clause

// Package generate makes generated/ from the recorded models: offline, without a C compiler or headers, byte for byte
// the same on every machine.
package generate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// Result is everything that was generated.
type Result struct {
	Primary  *model.Release
	Plans    []*rules.Plan
	Files    emit.Files // by path below generated/: "ibv/struct.go"
	Coverage []HeaderCoverage
	Unread   []rules.Exception // upstream headers that no package is made of
}

// FromModels generates from the models in a directory, and what was measured in another; primary names the release
// that generated/ is.
func FromModels(dir, measured, primary string) (*Result, error) {
	recorded, err := ReadModels(dir)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(recorded, func(r *model.Release) bool { return r.Name == primary })
	if at < 0 {
		return nil, fmt.Errorf("%s: no model of release %s, which headers.lock calls primary; run make record", dir,
			primary)
	}
	path := filepath.Join(dir, primary+".json")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	exceptions, err := rules.DefaultExceptions()
	if err != nil {
		return nil, err
	}
	in := rules.Input{Release: recorded[at], Path: path, Text: text}
	if in.Measured, err = ReadMeasured(measured); err != nil {
		return nil, err
	}
	return FromInput(in, recorded, rules.Packages, exceptions)
}

// ReadMeasured reads all that was measured.
func ReadMeasured(dir string) ([]*model.Measured, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []*model.Measured
	var errs []error
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			var m *model.Measured
			m, err = model.ParseMeasured(e.Name(), text)
			all = append(all, m)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", dir, err))
		}
	}
	return all, errors.Join(errs...)
}

// CheckPinned refuses a directory of models that does not have exactly the pinned releases: "since" is only as true
// as the models are complete.
func CheckPinned(dir string, pinned []string) error {
	recorded, err := ReadModels(dir)
	if err != nil {
		return err
	}
	for _, name := range pinned {
		if !slices.ContainsFunc(recorded, func(r *model.Release) bool { return r.Name == name }) {
			return fmt.Errorf("%s: no model of release %s, which headers.lock pins; run make record", dir, name)
		}
	}
	for _, r := range recorded {
		if !slices.Contains(pinned, r.Name) {
			return fmt.Errorf("%s: a model of release %s, which headers.lock does not pin; pin it or remove the model",
				dir, r.Name)
		}
	}
	return nil
}

// FromInput generates the given packages from one model.
func FromInput(in rules.Input, recorded rules.Recorded, packages []rules.Package,
	exceptions *rules.Exceptions) (*Result, error) {
	res := &Result{Primary: in.Release, Files: emit.Files{}}
	unread, err := rules.CheckUnread(in, exceptions)
	if err != nil {
		return nil, err
	}
	res.Unread = unread
	for _, p := range packages {
		plan, err := rules.Resolve(p, in, recorded, exceptions, res.Plans)
		if err != nil {
			return nil, err
		}
		res.Plans = append(res.Plans, plan)
	}
	if err := rules.Finish(exceptions); err != nil {
		return nil, err
	}
	if err := res.emit(); err != nil {
		return nil, err
	}
	if res.Coverage, err = cover(res); err != nil {
		return nil, err
	}
	return res, nil
}

// emit prints the packages of nouns and of functions and the witness, side by side.
func (res *Result) emit() error {
	print := map[string]func() (emit.Files, error){
		"witness": func() (emit.Files, error) { return emit.Witness(res.Plans) },
	}
	for _, plan := range res.Plans {
		print[plan.Package.Name] = func() (emit.Files, error) { return emit.Package(plan) }
		if plan.Verbs != nil {
			print[plan.Verbs.Verbs.Name] = func() (emit.Files, error) { return emit.Verbs(plan.Verbs) }
		}
	}
	var printed sync.Map
	var group errgroup.Group
	for dir, files := range print {
		group.Go(func() error {
			all, err := files()
			if err != nil {
				return fmt.Errorf("package %s: %w", dir, err)
			}
			for name, text := range all {
				printed.Store(dir+"/"+name, text)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	printed.Range(func(name, text any) bool {
		res.Files[name.(string)] = text.([]byte)
		return true
	})
	return nil
}

// ReadModels reads all the models of a directory, the earliest release first.
func ReadModels(dir string) (rules.Recorded, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all rules.Recorded
	for _, path := range paths {
		r, err := model.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if base := strings.TrimSuffix(filepath.Base(path), ".json"); base != r.Name {
			return nil, fmt.Errorf("%s: is the model of release %s; name it %[2]s.json", path, r.Name)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *model.Release) int { return CompareReleases(a.Name, b.Name) })
	return all, nil
}

// CompareReleases orders "9.0" before "44.0".
func CompareReleases(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, errX := strconv.Atoi(as[i])
		y, errY := strconv.Atoi(bs[i])
		c := cmp.Compare(x, y)
		if errX != nil || errY != nil {
			c = cmp.Compare(as[i], bs[i])
		}
		if c != 0 {
			return c
		}
	}
	return len(as) - len(bs)
}
