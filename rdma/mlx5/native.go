// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/direct"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	_ "github.com/goverbs/goverbs/rdma/native/mlx5" // adds mlx5 to package native
	_ "github.com/goverbs/goverbs/rdma/soft/mlx5"   // adds dynamic connections to software devices
)

// NewPath returns a data path in Go for an mlx5 device: posts write work requests to the queues that the device reads,
// and polls read the completions that it writes, without calling C. Pass the path to [rdma.Device.UsePath] before you
// create queues, or set it in [rdma.QueueOptions] of queue pairs and of their completion and shared receive queues. It
// supports the attributes of [CreateQP] except MLX5DV_QP_CREATE_OOO_DP.
//
// C functions must not post to these queues or poll them: libmlx5 has its own counters, starts at 0, and overwrites
// requests. Posts and polls do not detect that, but slower operations do: Drain, Query and Close of queue pairs, Query
// and Close of shared receive queues, requests for events, Wait and Close of completion queues, and operations that
// find a full queue or an invalid completion. They return EBUSY, with the queue and the evidence; if Close returns such
// an error, the object is closed. Once Go has posted or polled again, a post or poll by C is detected only if C's
// request is still in the ring.
//
// libmlx5 does not share a lock for doorbell registers. Queue pairs on such paths share a register under their own
// lock. If queue pairs to which C posts through package rdma use the same register, they write only 8 bytes at once (no
// BlueFlame). If other C code has created queue pairs, open the device again, or set MLX5_SHUT_UP_BF=1 in the
// environment.
//
// The path supports queue pairs of type RC, UC, UD and XRC_SEND, dynamic connections, basic shared receive queues, and
// completion queues that are not resized; on devices of package native also raw packets. Creating other objects fails
// with the reason: IPoIB, work queues, and shared receive queues of other types.
//
// The path was tested only on an emulated device, against libmlx5 of rdma-core 44.0, 56.1 and 65.0: it writes the same
// bytes to queues, doorbell records and doorbells, and reads the same values from completions.
//
// Devices of package native already use this code, but through more function calls, which NewPath saves.
//
// NewPath fails if the device is not an mlx5 device, if its firmware or libmlx5 is too old (see [Release]), or if its
// queues use signatures.
//
// C: mlx5dv_init_obj
//
// Man: mlx5dv_init_obj(3)
func NewPath(d *rdma.Device) (rdma.Path, error) {
	const verb = "mlx5dv_init_obj"
	refused := func(format string, args ...any) error {
		return &rdma.VerbError{Verb: verb, Object: d.Name(), Errno: syscall.EOPNOTSUPP,
			Reason: "no data path in Go: " + fmt.Sprintf(format, args...)}
	}
	if d == nil {
		return nil, verberr.Invalid(verb, "", "the device is nil")
	}
	c := d.C()
	if c == nil {
		return nil, &rdma.VerbError{Verb: verb, Object: d.Name(), Err: rdma.ErrClosed}
	}
	if own := direct.Of(c); own != nil { // a device of package native
		return own, nil
	}
	if name, _, err := provider.WayOf(uintptr(c.Ops.PostSend), provider.PostSend, "", nil); err != nil {
		return nil, err
	} else if name != "mlx5" {
		return nil, refused("the device is not mlx5's, but of the provider %q", name)
	}
	if release := releaseOf(c); release != "" && older(release, compared[0]) {
		return nil, refused("its libmlx5 of rdma-core %s is older than the oldest compared release, %s: see "+
			"mlx5.Release", release, compared[0])
	}
	attr := &mlx5dv.Context{}
	if err := libmlx5.QueryDevice(c, attr); err != nil {
		return nil, err
	}
	if attr.Flags&mlx5dv.CONTEXT_FLAGS_CQE_V1 == 0 {
		return nil, refused("its completions have version 0, without user indices")
	}
	for _, name := range []string{"MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE"} {
		if _, set := os.LookupEnv(name); set { // any value enables them
			return nil, refused("%s enables signatures of requests", name)
		}
	}
	has, err := d.Query()
	if err != nil {
		return nil, err
	}
	return direct.New(libmlx5.InitObj, os.LookupEnv, has.AtomicCap != ibv.ATOMIC_NONE), nil
}
