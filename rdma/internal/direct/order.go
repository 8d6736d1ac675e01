// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"math/bits"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Conversions to network order for little-endian processors; all supported ones are. ToBE32 and similar functions of
// package ibv check the processor's byte order each time, which costs more than the conversion.

func be16(v uint16) ibv.BE16 { return ibv.BE16(bits.ReverseBytes16(v)) }
func be32(v uint32) ibv.BE32 { return ibv.BE32(bits.ReverseBytes32(v)) }
func be64(v uint64) ibv.BE64 { return ibv.BE64(bits.ReverseBytes64(v)) }

func host16(v ibv.BE16) uint16 { return bits.ReverseBytes16(uint16(v)) }
func host32(v ibv.BE32) uint32 { return bits.ReverseBytes32(uint32(v)) }
func host64(v ibv.BE64) uint64 { return bits.ReverseBytes64(uint64(v)) }

// pair returns two adjacent numbers.
func pair(first, second ibv.BE32) uint64 { return uint64(first) | uint64(second)<<32 }
