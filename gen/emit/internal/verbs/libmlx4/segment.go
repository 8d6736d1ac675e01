// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package libmlx4

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx4dv"
)

// The functions of this file read and write device layouts in memory. They do not call C.

// GetCQEOwner returns the ownership bit of a completion entry, in place: hardware or software.
//
//verbs:c uint8_t mlx4dv_get_cqe_owner(struct mlx4_cqe *cqe)
func GetCQEOwner(cqe *mlx4dv.MLX4CQE) uint8 { return cqe.OwnerSROpcode & mlx4dv.MLX4_CQE_OWNER_MASK }

// SetCQEOwner sets the bit of [GetCQEOwner].
//
//verbs:c void mlx4dv_set_cqe_owner(struct mlx4_cqe *cqe, uint8_t val)
func SetCQEOwner(cqe *mlx4dv.MLX4CQE, val uint8) {
	const mask = mlx4dv.MLX4_CQE_OWNER_MASK
	cqe.OwnerSROpcode = cqe.OwnerSROpcode&^mask | val&mask
}

// GetCQEOpcode returns the opcode bits of a completion entry.
//
//verbs:c uint8_t mlx4dv_get_cqe_opcode(struct mlx4_cqe *cqe)
func GetCQEOpcode(cqe *mlx4dv.MLX4CQE) uint8 { return cqe.OwnerSROpcode & mlx4dv.MLX4_CQE_OPCODE_MASK }

// SetCtrlSeg fills in the first segment of a work queue entry. imm is written unchanged: immediate data in network byte
// order, or the bytes of ibv.ToBE32 of a key to invalidate.
//
//verbs:c void mlx4dv_set_ctrl_seg(struct mlx4_wqe_ctrl_seg *seg, uint32_t owner_opcode, uint8_t fence_size, uint32_t srcrb_flags, uint32_t imm)
func SetCtrlSeg(seg *mlx4dv.MLX4WQECtrlSeg, ownerOpcode uint32, fenceSize uint8, srcrbFlags, imm uint32) {
	seg.OwnerOpcode = ibv.ToBE32(ownerOpcode)
	*seg.FenceSize() = fenceSize
	*seg.SrcrbFlags() = ibv.ToBE32(srcrbFlags)
	seg.Imm = ibv.BE32(imm)
}

// SetDgramSeg fills in a datagram's address. dgid points to 16 bytes, mac to 6.
//
//verbs:c void mlx4dv_set_dgram_seg(struct mlx4_wqe_datagram_seg *seg, uint32_t port_pd, uint8_t g_slid, uint16_t dlid, uint8_t gid_index, uint8_t stat_rate, uint8_t hop_limit, uint32_t sl_tclass_flowlabel, uint8_t *dgid, uint32_t dqpn, uint32_t qkey, uint16_t vlan, uint8_t *mac)
func SetDgramSeg(seg *mlx4dv.MLX4WQEDatagramSeg, portPD uint32, gSLID uint8, dlid uint16, gidIndex, statRate,
	hopLimit uint8, slTclassFlowlabel uint32, dgid *uint8, dqpn, qkey uint32, vlan uint16, mac *uint8) {
	av := &seg.AV
	av.PortPD = ibv.ToBE32(portPD)
	av.GSLID = gSLID
	av.DLID = ibv.ToBE16(dlid)
	av.GIDIndex = gidIndex
	av.StatRate = statRate
	av.HopLimit = hopLimit
	av.SLTClassFlowlabel = ibv.ToBE32(slTclassFlowlabel)
	copy(av.DGID[:], unsafe.Slice(dgid, len(av.DGID)))
	seg.DQPN = ibv.ToBE32(dqpn)
	seg.QKey = ibv.ToBE32(qkey)
	seg.VLAN = ibv.ToBE16(vlan)
	copy(seg.MAC[:], unsafe.Slice(mac, len(seg.MAC)))
}

// SetDataSeg fills in a scatter/gather element.
//
//verbs:c void mlx4dv_set_data_seg(struct mlx4_wqe_data_seg *seg, uint32_t length, uint32_t lkey, uintptr_t address)
func SetDataSeg(seg *mlx4dv.MLX4WQEDataSeg, length, lkey uint32, address uintptr) {
	seg.ByteCount = ibv.ToBE32(length)
	seg.LKey = ibv.ToBE32(lkey)
	seg.Addr = ibv.ToBE64(uint64(address))
}
