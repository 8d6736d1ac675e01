// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"fmt"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/headers"
)

// Recorded gives the recorded models, all those that headers.lock pins, and the primary one that generated/ is made
// from.
func Recorded() (primary *model.Release, all []*model.Release, err error) {
	lock, err := fetch.ParseLock("headers/headers.lock", headers.Lock())
	if err != nil {
		return nil, nil, err
	}
	for _, pinned := range lock.Releases {
		data, err := headers.Model(pinned.Name)
		if err != nil {
			return nil, nil, fmt.Errorf("release %s has no recorded model: %w; record it with make record", pinned.Name,
				err)
		}
		r, err := model.Decode("headers/models/"+pinned.Name+".json", data)
		if err != nil {
			return nil, nil, err
		}
		if pinned.Role == fetch.Primary {
			primary = r
		}
		all = append(all, r)
	}
	return primary, all, nil
}
