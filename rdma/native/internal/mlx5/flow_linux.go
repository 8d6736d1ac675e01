// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// Counts implements [driver.Flows].
func (*device) Counts(of ibv.CounterDescription) bool {
	return of == ibv.COUNTER_PACKETS || of == ibv.COUNTER_BYTES
}

// CreateFlow implements [driver.Flows].
func (d *device) CreateFlow(points []driver.CounterPoint, counted bool, send driver.Command) syscall.Errno {
	if !counted {
		return send(driver.Bytes(&uapi.MLX5IBCreateFlow{}), nil)
	}
	var own struct {
		uapi.MLX5IBCreateFlow
		data uapi.MLX5IBFlowCountersData
	}
	if n := len(points); n > 0 {
		space := d.file.Commands.Space // the kernel reads the address
		memory, err := space.Alloc(n * int(unsafe.Sizeof(uapi.MLX5IBFlowCountersDesc{})))
		if err != nil {
			return syscall.ENOMEM
		}
		defer space.Free(memory)
		for i, p := range points {
			unsafe.Slice((*uapi.MLX5IBFlowCountersDesc)(memory), n)[i] = uapi.MLX5IBFlowCountersDesc{
				Description: uint32(p.Counter), Index: p.Index}
		}
		own.NcountersData = 1
		own.data = uapi.MLX5IBFlowCountersData{CountersData: uint64(uintptr(memory)), Ncounters: uint32(n)}
	}
	return send(driver.Bytes(&own), nil)
}
