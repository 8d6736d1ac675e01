// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"fmt"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

// Recorded gives the recorded models, all those that headers.lock pins, and the primary one of each project, which
// generated/ is made from.
func Recorded() (primary, all rules.Recorded, err error) {
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
