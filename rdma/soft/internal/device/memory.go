// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"unsafe"

	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

type segment = mem.Segment

func pointer(address uint64) unsafe.Pointer { return mem.Pointer(address) }
func at[T any](address uint64) *T           { return mem.At[T](address) }
func list[T any](address uint64, n int) []T { return mem.List[T](address, n) }
func addressOf[T any](v *T) uint64          { return mem.AddressOf(v) }
func move(to, from, n uint64)               { mem.Move(to, from, n) }
