// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"fmt"
	"os"

	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/mlx5/internal/direct"
)

// NewPath returns a data path in Go for a device of mlx5: posts write work requests to the queues that the device
// reads, polls read what it writes, and neither calls C. Give it to [rdma.Device.UsePath], before you create queues, or
// set it as Path of [rdma.QueueOptions] of queue pairs and of all that they complete in or receive from. C's functions
// must not post to these queues, or poll them.
//
// There are queue pairs of type RC, UC, UD and XRC_SEND, basic shared receive queues, and completion queues that are
// not resized. What is missing fails when it is created, and says why: raw packets, dynamic connections, work queues,
// shared receive queues of other types.
//
// What this was shown on is an emulated device, with the libraries of rdma-core 44.0, 56.1 and 65.0: the bytes in
// queues, doorbell records and doorbells are those of libmlx5, request for request, and so are completions. No adapter
// was at hand.
//
// Where the device is not mlx5's, its firmware is too old, or its queues have signatures, the error says so.
//
// C: mlx5dv_init_obj
//
// Man: mlx5dv_init_obj(3)
func NewPath(d *rdma.Device) (rdma.Path, error) {
	const verb = "mlx5dv_init_obj"
	refused := func(format string, args ...any) error {
		return &verberr.VerbError{Verb: verb, Object: d.Name(), Errno: verberr.EOPNOTSUPP,
			Reason: "no data path in Go: " + fmt.Sprintf(format, args...)}
	}
	c := d.C()
	if c == nil {
		return nil, &verberr.VerbError{Verb: verb, Object: d.Name(), Err: rdma.ErrClosed}
	}
	if name, _, _, err := provider.Ways(uintptr(c.Ops.PostSend), provider.PostSend, "", nil); err != nil {
		return nil, err
	} else if name != "mlx5" {
		return nil, refused("the device is not mlx5's, but of the provider %q", name)
	}
	attr := &mlx5dv.Context{}
	if err := libmlx5.QueryDevice(c, attr); err != nil {
		return nil, err
	}
	if attr.Flags&uint64(mlx5dv.CONTEXT_FLAGS_CQE_V1) == 0 {
		return nil, refused("its completions are of the first version, which has no user indices")
	}
	for _, name := range []string{"MLX5_QP_SIGNATURE", "MLX5_SRQ_SIGNATURE"} {
		if os.Getenv(name) != "" && os.Getenv(name) != "0" {
			return nil, refused("%s asks for signatures of requests", name)
		}
	}
	return direct.New(os.Getenv), nil
}
