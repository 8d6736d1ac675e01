// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

import (
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/rdma/native/internal/efa"
)

func init() {
	driver.Register(driver.Vendor{ID: uapi.RDMA_DRIVER_EFA, Open: efa.Open, Library: "libefa", Functions: efa.Functions})
}
