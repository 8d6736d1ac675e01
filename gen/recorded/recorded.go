// SPDX-License-Identifier: BSD-2-Clause

// Package recorded provides the models and measurements that are embedded in the module, for programs that run without
// its source tree.
package recorded

import (
	"fmt"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

// Releases returns the primary model of each project, and all recorded models that headers.lock pins.
func Releases() (primary, all rules.Recorded, err error) {
	lock, err := fetch.ParseLock("headers/headers.lock", headers.Lock())
	if err != nil {
		return nil, nil, err
	}
	for _, pinned := range lock.Releases {
		data, err := headers.Model(pinned.File())
		if err != nil {
			return nil, nil, fmt.Errorf("%s has no recorded model: %w; record it with make record", pinned, err)
		}
		r, err := model.Decode("headers/models/"+pinned.File()+".json", data)
		if err != nil {
			return nil, nil, err
		}
		if pinned.Role == fetch.Primary {
			primary = append(primary, r)
		}
		all = append(all, r)
	}
	return primary, all, nil
}

// Inputs returns the primary releases with all inputs of gen/rules.
func Inputs() ([]rules.Input, error) {
	primary, all, err := Releases()
	if err != nil {
		return nil, err
	}
	measured, err := Measured()
	if err != nil {
		return nil, err
	}
	ioctls, err := model.ReadIoctls(headers.Ioctls())
	if err != nil {
		return nil, err
	}
	var inputs []rules.Input
	for _, r := range primary {
		text, err := headers.Model(rules.FileOf(r))
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, rules.Input{Release: r, Path: "headers/models/" + rules.FileOf(r) + ".json", Text: text,
			Measured: measured, Ioctls: ioctls, Recorded: all})
	}
	return inputs, nil
}

// Measured returns what the measured providers accepted.
func Measured() ([]*model.Measured, error) { return model.ReadMeasured(headers.Measured()) }

// Tables returns the validity tables with the given names, or all.
func Tables(names ...string) ([]*rules.Grid, error) {
	inputs, err := Inputs()
	if err != nil {
		return nil, err
	}
	exceptions, err := rules.DefaultExceptions()
	if err != nil {
		return nil, err
	}
	plans, _, err := rules.Plans(inputs, rules.All(), exceptions)
	if err != nil {
		return nil, err
	}
	return rules.Tables(plans, names...)
}
