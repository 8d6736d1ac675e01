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
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/mlx5/internal/direct"
)

// NewPath returns a data path in Go for a device of mlx5: posts write work requests to the queues that the device
// reads, polls read what it writes, and neither calls C. Give it to [rdma.Device.UsePath], before you create queues, or
// set it as Path of [rdma.QueueOptions] of queue pairs and of all that they complete in or receive from. Attributes of
// [CreateQP] work on it, but for MLX5DV_QP_CREATE_OOO_DP.
//
// C's functions must not post to these queues, or poll them: libmlx5 has numbers of its own, begins at 0, and
// overwrites requests. No post or poll of the usual kind looks for that, but what has time does: Drain, Query and Close
// of queue pairs, Query and Close of shared receive queues, requests for events, Wait and Close of completion queues,
// and whatever finds a queue full or a completion that makes no sense. The error is EBUSY, and names the queue and what
// was found; what Close says it of is closed. It is not found once Go has posted, or polled, behind C, unless C's
// request still stands in the ring among later ones.
//
// Nor does libmlx5 know who else uses a doorbell register. Queue pairs on such paths take turns where they share one,
// and write it 8 bytes at once where a queue pair of package rdma that C posts to shares it, too (no BlueFlame). For
// queue pairs that C has made, open the device once more, or set MLX5_SHUT_UP_BF=1 in the environment.
//
// There are queue pairs of type RC, UC, UD and XRC_SEND, basic shared receive queues, and completion queues that are
// not resized. What is missing fails when it is created, and says why: raw packets, IPoIB, dynamic connections, work
// queues, shared receive queues of other types.
//
// What this was shown on is an emulated device, with the libraries of rdma-core 44.0, 56.1 and 65.0: the bytes in
// queues, doorbell records and doorbells are those of libmlx5, request for request, and so are completions. No adapter
// was at hand.
//
// Where the device is not mlx5's, its firmware or its libmlx5 is too old (see [Release]), or its queues have
// signatures, the error says so.
//
// C: mlx5dv_init_obj
//
// Man: mlx5dv_init_obj(3)
func NewPath(d *rdma.Device) (rdma.Path, error) {
	const verb = "mlx5dv_init_obj"
	refused := func(format string, args ...any) error {
		return &verberr.VerbError{Verb: verb, Object: d.Name(), Errno: syscall.EOPNOTSUPP,
			Reason: "no data path in Go: " + fmt.Sprintf(format, args...)}
	}
	if d == nil {
		return nil, verberr.Invalid(verb, "", "the device is nil")
	}
	c := d.C()
	if c == nil {
		return nil, &verberr.VerbError{Verb: verb, Object: d.Name(), Err: rdma.ErrClosed}
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
		if _, set := os.LookupEnv(name); set { // to whatever
			return nil, refused("%s asks for signatures of requests", name)
		}
	}
	has, err := d.Query()
	if err != nil {
		return nil, err
	}
	return direct.New(os.LookupEnv, has.AtomicCap != ibv.ATOMIC_NONE), nil
}
