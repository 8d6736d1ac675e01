// SPDX-License-Identifier: BSD-2-Clause

//go:build loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/rdma/native/internal/rxe"
	"github.com/goverbs/goverbs/rdma/native/internal/siw"
	"github.com/goverbs/goverbs/runtime"
)

// drivers are the supported drivers of the kernel.
var drivers = map[uapi.RDMADriverID]driver.Driver{
	uapi.RDMA_DRIVER_RXE: rxe.Open,
	uapi.RDMA_DRIVER_SIW: siw.Open,
}

// vendorFunctions returns the functions of vendors' libraries by library and name.
func (*Backend) vendorFunctions() map[string]map[string]runtime.Func { return nil }
