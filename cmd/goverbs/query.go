// SPDX-License-Identifier: BSD-2-Clause

package main

import "github.com/goverbs/goverbs/cmd/goverbs/internal/query"

type queryCommand struct {
	Device string `arg:"" predictor:"device" help:"Device."`
}

func (c queryCommand) Run(o output) error {
	report, err := query.Of(c.Device)
	if err != nil {
		return err
	}
	return o.print(report)
}
