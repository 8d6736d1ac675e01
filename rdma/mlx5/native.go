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
	_ "github.com/goverbs/goverbs/rdma/native/mlx5" // native devices, for programs that use this package
	_ "github.com/goverbs/goverbs/rdma/soft/mlx5"   // dynamic connections of software devices
)

// NewPath returns a data path in Go for an mlx5 device: posts write work requests to the queues that the device reads,
// polls read the completions that it writes, and neither calls C. Pass it to [rdma.Device.UsePath] before you create
// queues, or set it as Path of [rdma.QueueOptions] for queue pairs and for their completion and shared receive queues.
// It supports attributes of [CreateQP] except MLX5DV_QP_CREATE_OOO_DP.
//
// C functions must not post to these queues or poll them: libmlx5 has its own counters, starts at 0, and overwrites
// requests. Ordinary posts and polls do not detect that, but slower operations do: Drain, Query and Close of queue
// pairs, Query and Close of shared receive queues, requests for events, Wait and Close of completion queues, and
// operations that find a full queue or an invalid completion. They return EBUSY with the queue and the evidence; after
// such an error from Close, the object is closed. A post or poll by C is no longer detected after Go has posted or
// polled again, unless C's request remains in the ring.
//
// libmlx5 has no lock for other users of a doorbell register. Queue pairs on such paths share a register with a lock,
// and write only 8 bytes at once (no BlueFlame) if a queue pair of package rdma to which C posts shares it. If C code
// has created queue pairs, open the device again, or set MLX5_SHUT_UP_BF=1 in the environment.
//
// Supported are queue pairs of type RC, UC, UD and XRC_SEND, basic shared receive queues, and completion queues that
// are not resized. Creating anything else fails with the reason: raw packets, IPoIB, dynamic connections, work queues,
// shared receive queues of other types.
//
// The path was tested only on an emulated device, with libmlx5 of rdma-core 44.0, 56.1 and 65.0: it writes the same
// bytes to queues, doorbell records and doorbells as libmlx5, and reads the same completions.
//
// Devices of package native post and poll by the same code, through more calls, which NewPath saves.
//
// NewPath fails if the device is not an mlx5 device, if its firmware or libmlx5 is too old (see [Release]), or if its
// queues have signatures.
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
		return nil, refused("its libmlx5 is of rdma-core %s, and the oldest one that was compared is of %s: see "+
			"mlx5.Release", release, compared[0])
	}
	attr := &mlx5dv.Context{}
	if err := libmlx5.QueryDevice(c, attr); err != nil {
		return nil, err
	}
	if attr.Flags&mlx5dv.CONTEXT_FLAGS_CQE_V1 == 0 {
		return nil, refused("its completions are of the first version, which has no user indices")
	}
	for _, name := range []string{"MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE"} {
		if _, set := os.LookupEnv(name); set { // to any value
			return nil, refused("%s asks for signatures of requests", name)
		}
	}
	has, err := d.Query()
	if err != nil {
		return nil, err
	}
	return direct.New(libmlx5.InitObj, os.LookupEnv, has.AtomicCap != ibv.ATOMIC_NONE), nil
}
