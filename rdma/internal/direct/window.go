// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// key writes a request that binds a memory window or invalidates its binding. A mask selects the fields of the key's
// context that change.
func (p *posting) key(at unsafe.Pointer, w *ibv.SendWR, c *mlx5dv.MLX5WQECtrlSeg) (unsafe.Pointer, int32) {
	b := ibv.SendBindMW{}
	kind := ibv.MW_TYPE_2
	p.opcode = ibv.WC_LOCAL_INV
	if w.Opcode == ibv.WR_BIND_MW {
		b = *w.BindMW()
		mw := b.MW.Deref()
		kind, p.opcode, c.Imm = mw.Type, ibv.WC_BIND_MW, be32(mw.RKey)
	}
	at, _, errno := p.window(at, kind, &b)
	return at, errno
}

// window writes the new context of a window's key, and returns the place after it and its size in units.
func (p *posting) window(at unsafe.Pointer, kind ibv.MWType, b *ibv.SendBindMW) (end unsafe.Pointer, units uint32,
	errno int32) {
	info := &b.BindInfo
	if info.Length > 1<<31 {
		return at, 0, eopnotsupp // exceeds the maximum of an entry in the list of regions
	}
	q := p.q
	at = q.wrap(changes(at, kind, info.Length != 0))
	at = q.context(at, kind, b)
	units = uint32((unsafe.Sizeof(mlx5dv.MLX5WQEUMRCtrlSeg{}) + unsafe.Sizeof(mlx5dv.MLX5WQEMKeyContextSeg{})) / unit)
	if info.Length == 0 {
		return at, units, 0
	}
	at = q.wrap(at)
	type list struct { // list of regions; the device reads whole blocks
		region mlx5dv.MLX5WQEUMRKLMSeg
		_      [block - unsafe.Sizeof(mlx5dv.MLX5WQEUMRKLMSeg{})]byte
	}
	*(*list)(at) = list{region: mlx5dv.MLX5WQEUMRKLMSeg{ByteCount: be32(uint32(info.Length)),
		MKey: be32(info.MR.Deref().LKey), Address: be64(info.Addr)}}
	return unsafe.Add(at, block), units + block/unit, 0
}

// changes writes the mask of changed fields.
func changes(at unsafe.Pointer, kind ibv.MWType, bind bool) unsafe.Pointer {
	const (
		always = mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE | mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY
		place  = mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN | mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR |
			mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE |
			mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ |
			mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE |
			mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC
		listUnits = 4 // one block
	)
	mask := uint64(always)
	s := mlx5dv.MLX5WQEUMRCtrlSeg{
		Flags: mlx5dv.MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET | mlx5dv.MLX5_WQE_UMR_CTRL_FLAG_INLINE,
	}
	check := uint8(mlx5dv.MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN)
	if bind {
		s.KLMOctowords = be16(listUnits)
		check = mlx5dv.MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE
		mask |= place
	}
	if kind == ibv.MW_TYPE_2 {
		s.Flags |= check
		mask |= mlx5dv.MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN
	}
	s.MKeyMask = be64(mask)
	*(*mlx5dv.MLX5WQEUMRCtrlSeg)(at) = s
	return unsafe.Add(at, unsafe.Sizeof(s))
}

// context writes the changed fields of the key's context. The others keep their values.
func (q *sendQueue) context(at unsafe.Pointer, kind ibv.MWType, b *ibv.SendBindMW) unsafe.Pointer {
	s, info := (*mlx5dv.MLX5WQEMKeyContextSeg)(at), &b.BindInfo
	owner := uint32(0xffffff00) // no queue pair
	if kind == ibv.MW_TYPE_2 && info.Length != 0 {
		owner = q.number
	}
	s.QPNMKey = be32(owner | b.RKey&0xff)
	if info.Length == 0 {
		s.Free = mlx5dv.MLX5_WQE_MKEY_CONTEXT_FREE
		return unsafe.Add(at, unsafe.Sizeof(*s))
	}
	s.Free, s.AccessFlags, s.StartAddr = 0, 0, 0
	for _, a := range accesses {
		if info.MWAccessFlags&a.of != 0 {
			s.AccessFlags |= a.is
		}
	}
	if info.MWAccessFlags&ibv.ACCESS_ZERO_BASED == 0 {
		s.StartAddr = be64(info.Addr)
	}
	s.Len = be64(info.Length)
	return unsafe.Add(at, unsafe.Sizeof(*s))
}

var accesses = [...]struct {
	of ibv.AccessFlags
	is uint8
}{
	{ibv.ACCESS_LOCAL_WRITE, mlx5dv.MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE},
	{ibv.ACCESS_REMOTE_WRITE, mlx5dv.MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE},
	{ibv.ACCESS_REMOTE_READ, mlx5dv.MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ},
	{ibv.ACCESS_REMOTE_ATOMIC, mlx5dv.MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC},
}
