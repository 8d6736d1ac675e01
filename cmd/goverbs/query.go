// SPDX-License-Identifier: BSD-2-Clause

package main

import "github.com/goverbs/goverbs/cmd/goverbs/internal/query"

type queryCommand struct {
	Device string `arg:"" predictor:"device" help:"Name of the device."`
}

func (c queryCommand) Run(o output) error {
	report, err := query.Of(c.Device)
	if err != nil {
		return err
	}
	return o.print(report)
}
