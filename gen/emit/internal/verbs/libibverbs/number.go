// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package libibverbs

import "github.com/goverbs/goverbs/generated/ibv"

// IncRKey returns the key with its last byte, which the program may choose, incremented. It does not call C.
//
//verbs:c uint32_t ibv_inc_rkey(uint32_t rkey)
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// IsQPTSupported reports whether a bit set of queue pair types contains one. It does not call C.
//
//verbs:c int ibv_is_qpt_supported(uint32_t caps, enum ibv_qp_type qpt)
func IsQPTSupported(caps uint32, qpt ibv.QPType) bool { return caps>>(uint32(qpt)&31)&1 != 0 }

// FlowLabelToUDPSport returns the UDP source port for a flow label of 20 bits: its low 14 bits, mixed with the high 6,
// in the range of dynamic ports. It does not call C.
//
//verbs:c uint16_t ibv_flow_label_to_udp_sport(uint32_t fl)
func FlowLabelToUDPSport(fl uint32) uint16 {
	low, high := fl&0x3fff, fl>>14&0x3f
	return uint16(low^high) | ibv.IB_ROCE_UDP_ENCAP_VALID_PORT_MIN
}
