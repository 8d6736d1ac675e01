// SPDX-License-Identifier: BSD-2-Clause

// Package generate generates generated/ from the recorded models. It works offline, without a C compiler or headers,
// and gives the same bytes on every machine.
package generate

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// Result holds the generated files.
type Result struct {
	Primary  []*model.Release // one for each project
	Plans    []*rules.Plan
	Files    emit.Files // path below generated/ → content: "ibv/struct.go"
	Coverage []HeaderCoverage
	Unread   []rules.Exception // upstream headers that no package covers
	recorded rules.Recorded
	ioctls   []*model.IoctlSchema
}

// Sources are the directories of the recorded facts.
type Sources struct {
	Models   string
	Measured string // answers of providers
	Ioctls   string // methods of kernels
}

// FromModels generates from recorded facts. primary names the model files of the primary releases, one of each project.
func FromModels(from Sources, primary ...string) (*Result, error) {
	recorded, err := ReadModels(from.Models)
	if err != nil {
		return nil, err
	}
	exceptions, err := rules.DefaultExceptions()
	if err != nil {
		return nil, err
	}
	answers, err := model.ReadMeasured(bounded.Dir(from.Measured))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from.Measured, err)
	}
	ioctls, err := model.ReadIoctls(bounded.Dir(from.Ioctls))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from.Ioctls, err)
	}
	var inputs []rules.Input
	for _, name := range primary {
		found := recorded.Find(name)
		path := filepath.Join(from.Models, name+".json")
		if len(found) != 1 {
			return nil, fmt.Errorf("%s: no model of the primary release; run make record", path)
		}
		text, err := bounded.Read(path)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, rules.Input{Release: found[0], Path: path, Text: text, Measured: answers,
			Ioctls: ioctls, Recorded: recorded})
	}
	return FromInputs(inputs, rules.All(), exceptions)
}

// CheckPinned checks that a directory contains models of exactly the pinned releases, given as file names, since
// "since" is correct only if the models are complete.
func CheckPinned(dir string, pinned []string) error {
	recorded, err := ReadModels(dir)
	if err != nil {
		return err
	}
	for _, name := range pinned {
		if !slices.ContainsFunc(recorded, func(r *model.Release) bool { return rules.FileOf(r) == name }) {
			return fmt.Errorf("%s: no model of release %s, which headers.lock pins; run make record", dir, name)
		}
	}
	for _, r := range recorded {
		if !slices.Contains(pinned, rules.FileOf(r)) {
			return fmt.Errorf("%s: model of %s, which headers.lock does not pin; pin it or remove the model", dir, r)
		}
	}
	return nil
}

// FromInputs generates the given packages from models, one for each project.
func FromInputs(inputs []rules.Input, packages []rules.Package, exceptions *rules.Exceptions) (*Result, error) {
	plans, unread, err := rules.Plans(inputs, packages, exceptions)
	if err != nil {
		return nil, err
	}
	res := &Result{Files: emit.Files{}, Plans: plans, Unread: unread}
	for _, in := range inputs {
		res.Primary = append(res.Primary, in.Release)
		res.recorded, res.ioctls = in.Recorded, in.Ioctls
	}
	if err := res.emit(); err != nil {
		return nil, err
	}
	res.Coverage, err = cover(res)
	return res, err
}

// emit prints the packages of types, the packages of functions, and the witness concurrently.
func (res *Result) emit() error {
	print := map[string]func() (emit.Files, error){
		"witness": func() (emit.Files, error) {
			return emit.Witness(slices.DeleteFunc(slices.Clone(res.Plans),
				func(p *rules.Plan) bool { return p.Package.GOOS() != "linux" }))
		},
	}
	for _, plan := range res.Plans {
		print[plan.Package.Name] = func() (emit.Files, error) { return emit.Package(plan) }
		if plan.Verbs != nil {
			print[plan.Verbs.Verbs.Name] = func() (emit.Files, error) { return emit.Verbs(plan.Verbs) }
		}
	}
	libraries, err := rules.Dropins(res.recorded, res.Plans)
	if err != nil {
		return err
	}
	if len(libraries) > 0 {
		with := slices.IndexFunc(res.Plans, func(p *rules.Plan) bool { return p.Verbs != nil && p.Verbs.Verbs.Dropin })
		slots, err := rules.ContextSlots(res.Plans[with].Model)
		if err != nil {
			return err
		}
		print["dropin"] = func() (emit.Files, error) { return emit.Dropins(libraries, slots) }
	}
	ioctls, err := rules.Ioctls(res.ioctls, res.Plans)
	if err != nil {
		return err
	}
	if ioctls != nil {
		print["ioctls"] = func() (emit.Files, error) { return emit.Ioctls(ioctls) }
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

// ReadModels reads all models of a directory. It returns them by project, the earliest release first.
func ReadModels(dir string) (rules.Recorded, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all rules.Recorded
	for _, path := range paths {
		r, err := ReadModel(path)
		if err != nil {
			return nil, err
		}
		if project.Named(r.Project) == nil {
			return nil, fmt.Errorf("%s: unknown project %q; gen/project has %s", path, r.Project,
				strings.Join(project.Names(), ", "))
		}
		if base := strings.TrimSuffix(filepath.Base(path), ".json"); base != rules.FileOf(r) {
			return nil, fmt.Errorf("%s: model of %s; rename it to %s.json", path, r, rules.FileOf(r))
		}
		all = append(all, r)
	}
	names := project.Names()
	slices.SortFunc(all, func(a, b *model.Release) int {
		return cmp.Or(slices.Index(names, a.Project)-slices.Index(names, b.Project),
			project.CompareReleases(a.Name, b.Name))
	})
	return all, nil
}

// ReadModel reads a model from a file.
func ReadModel(path string) (*model.Release, error) {
	data, err := bounded.Read(path)
	if err != nil {
		return nil, err
	}
	return model.Decode(path, data)
}
