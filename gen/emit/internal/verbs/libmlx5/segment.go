// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package libmlx5

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// The functions of this file read and write device layouts in memory. They do not call C.

// GetCQEOwner returns the ownership bit of a completion entry: hardware or software.
//
//verbs:c uint8_t mlx5dv_get_cqe_owner(struct mlx5_cqe64 *cqe)
func GetCQEOwner(cqe *mlx5dv.MLX5CQE64) uint8 { return cqe.OpOwn & 1 }

// SetCQEOwner sets the bit of [GetCQEOwner].
//
//verbs:c void mlx5dv_set_cqe_owner(struct mlx5_cqe64 *cqe, uint8_t val)
func SetCQEOwner(cqe *mlx5dv.MLX5CQE64, val uint8) { cqe.OpOwn = cqe.OpOwn&^1 | val&1 }

// GetCQESe returns the bit that is set if the sender requested a solicited event.
//
//verbs:c uint8_t mlx5dv_get_cqe_se(struct mlx5_cqe64 *cqe)
func GetCQESe(cqe *mlx5dv.MLX5CQE64) uint8 { return cqe.OpOwn >> 1 & 1 }

// GetCQEFormat returns the two format bits of a completion entry.
//
//verbs:c uint8_t mlx5dv_get_cqe_format(struct mlx5_cqe64 *cqe)
func GetCQEFormat(cqe *mlx5dv.MLX5CQE64) uint8 { return cqe.OpOwn >> 2 & 3 }

// GetCQEOpcode returns the four opcode bits of a completion entry.
//
//verbs:c uint8_t mlx5dv_get_cqe_opcode(struct mlx5_cqe64 *cqe)
func GetCQEOpcode(cqe *mlx5dv.MLX5CQE64) uint8 { return cqe.OpOwn >> 4 }

// SetCtrlSeg fills in the first segment of a work queue entry. imm is written unchanged: immediate data in network byte
// order, or the bytes of ibv.ToBE32 of a key to invalidate. The bytes of the stream ID are not changed.
//
//verbs:c void mlx5dv_set_ctrl_seg(struct mlx5_wqe_ctrl_seg *seg, uint16_t pi, uint8_t opcode, uint8_t opmod, uint32_t qp_num, uint8_t fm_ce_se, uint8_t ds, uint8_t signature, uint32_t imm)
func SetCtrlSeg(seg *mlx5dv.MLX5WQECtrlSeg, pi uint16, opcode, opmod uint8, qpNum uint32, fmCeSe, ds, signature uint8,
	imm uint32) {
	seg.OpmodIdxOpcode = ibv.ToBE32(uint32(opmod)<<24 | uint32(pi)<<8 | uint32(opcode))
	seg.QPNDs = ibv.ToBE32(qpNum<<8 | uint32(ds))
	seg.FMCESE = fmCeSe
	seg.Signature = signature
	seg.Imm = ibv.BE32(imm)
}

// SetDgramSeg fills in the address vector of a datagram. rmac points to 6 bytes, rgid to 16.
//
//verbs:c void mlx5dv_set_dgram_seg(struct mlx5_wqe_datagram_seg *seg, uint64_t key, uint32_t dqp_dct, uint8_t ext, uint8_t stat_rate_sl, uint8_t fl_mlid, uint16_t rlid, uint8_t *rmac, uint8_t tclass, uint8_t hop_limit, uint32_t grh_gid_fi, uint8_t *rgid)
func SetDgramSeg(seg *mlx5dv.MLX5WQEDatagramSeg, key uint64, dqpDct uint32, ext, statRateSL, flMlid uint8, rlid uint16,
	rmac *uint8, tclass, hopLimit uint8, grhGIDFi uint32, rgid *uint8) {
	av := &seg.AV
	*av.Key.DCKey() = ibv.ToBE64(key) // for a Q_Key the other half is 0
	av.DQPDCT = ibv.ToBE32(uint32(ext)<<31 | dqpDct)
	av.StatRateSL = statRateSL
	av.FLMLID = flMlid
	av.RLID = ibv.ToBE16(rlid)
	copy(av.RMAC[:], unsafe.Slice(rmac, len(av.RMAC)))
	av.TClass = tclass
	av.HopLimit = hopLimit
	av.GRHGIDFL = ibv.ToBE32(grhGIDFi)
	copy(av.RGID[:], unsafe.Slice(rgid, len(av.RGID)))
}

// SetDataSeg fills in a scatter/gather element.
//
//verbs:c void mlx5dv_set_data_seg(struct mlx5_wqe_data_seg *seg, uint32_t length, uint32_t lkey, uintptr_t address)
func SetDataSeg(seg *mlx5dv.MLX5WQEDataSeg, length, lkey uint32, address uintptr) {
	seg.ByteCount = ibv.ToBE32(length)
	seg.LKey = ibv.ToBE32(lkey)
	seg.Addr = ibv.ToBE64(uint64(address))
}

// SetEthSeg fills in an Ethernet segment and copies the packet's first inlineHdrSz bytes after it. The queue must have
// room for them.
//
//verbs:c void mlx5dv_set_eth_seg(struct mlx5_wqe_eth_seg *seg, uint8_t cs_flags, uint16_t mss, uint16_t inline_hdr_sz, uint8_t *inline_hdr_start)
func SetEthSeg(seg *mlx5dv.MLX5WQEEthSeg, csFlags uint8, mss, inlineHdrSz uint16, inlineHdrStart *uint8) {
	seg.CSFlags = csFlags
	seg.MSS = ibv.ToBE16(mss)
	seg.InlineHdrSz = ibv.ToBE16(inlineHdrSz)
	if inlineHdrSz > 0 {
		start := (*uint8)(unsafe.Add(unsafe.Pointer(seg), unsafe.Offsetof(seg.InlineHdrStart)))
		copy(unsafe.Slice(start, int(inlineHdrSz)), unsafe.Slice(inlineHdrStart, int(inlineHdrSz)))
	}
}

// TSToNs converts a time stamp of the device clock to nanoseconds. The counter wraps: a time stamp less than half its
// range ahead of clockInfo is later, any other one is earlier.
//
//verbs:c uint64_t mlx5dv_ts_to_ns(struct mlx5dv_clock_info *clock_info, uint64_t device_timestamp)
func TSToNs(clockInfo *mlx5dv.ClockInfo, deviceTimestamp uint64) uint64 {
	mult, shift := uint64(clockInfo.Mult), clockInfo.Shift
	if ahead := (deviceTimestamp - clockInfo.LastCycles) & clockInfo.Mask; ahead <= clockInfo.Mask/2 {
		return clockInfo.Nsec + (ahead*mult+clockInfo.Frac)>>shift
	}
	behind := (clockInfo.LastCycles - deviceTimestamp) & clockInfo.Mask
	return clockInfo.Nsec - (behind*mult-clockInfo.Frac)>>shift
}
